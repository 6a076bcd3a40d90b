// What an object looks like. Images, audio and video are read by the browser, in ranges; of text the first 64 KiB are shown.
import { useEffect, useState } from "preact/hooks";
import { bytes } from "../../data/format";
import { wordsOf } from "../../data/http";
import { type Head, call, path } from "../../data/s3";
import { T } from "../../texts";
import { Fault } from "../../ui/parts";

const TEXT_MOST = 64 * 1024;
const IMAGE_MOST = 64 * 1024 * 1024;

type Kind = "image" | "audio" | "video" | "text" | "json" | "none";

const BY_NAME: Record<string, Kind> = {
  png: "image", jpg: "image", jpeg: "image", gif: "image", webp: "image", avif: "image", svg: "image", ico: "image",
  mp3: "audio", ogg: "audio", wav: "audio", flac: "audio", m4a: "audio",
  mp4: "video", webm: "video", mov: "video",
  json: "json", txt: "text", md: "text", log: "text", csv: "text", xml: "text", html: "text", toml: "text", yaml: "text", yml: "text",
};

export function kindOf(name: string, type: string): Kind {
  const plain = type.split(";")[0]?.trim().toLowerCase() ?? "";
  if (plain.startsWith("image/")) return "image";
  if (plain.startsWith("audio/")) return "audio";
  if (plain.startsWith("video/")) return "video";
  if (plain === "application/json" || plain.endsWith("+json")) return "json";
  if (plain.startsWith("text/") || plain === "application/xml") return "text";
  const unknown = plain === "" || plain === "application/octet-stream" || plain === "binary/octet-stream";
  const kind = BY_NAME[name.slice(name.lastIndexOf(".") + 1).toLowerCase()] ?? "none";
  // A browser shows media by the type of the answer alone; text is read by script.
  return unknown && (kind === "text" || kind === "json") ? kind : "none";
}

export function Preview(props: { bucket: string; name: string; head: Head }) {
  const { bucket, name, head } = props;
  const kind = kindOf(name, head.type);
  const address = path(bucket, name);
  const [broken, setBroken] = useState(false);
  const fail = () => setBroken(true);
  if (head.size === 0) return <p class="preview hint">{T.objects.emptyObject}</p>;
  if (broken) return <p class="preview hint">{T.objects.noPreview}</p>;
  switch (kind) {
    case "image":
      if (head.size > IMAGE_MOST) return <p class="preview hint">{T.objects.tooLarge(bytes(IMAGE_MOST))}</p>;
      return (
        <div class="preview">
          <img src={address} alt={T.objects.imageOf(name)} onError={fail} />
        </div>
      );
    case "audio":
      return (
        <div class="preview">
          <audio controls preload="metadata" src={address} aria-label={name} onError={fail} />
        </div>
      );
    case "video":
      return (
        <div class="preview">
          <video controls preload="metadata" src={address} aria-label={name} onError={fail} />
        </div>
      );
    case "text":
    case "json":
      return <TextPreview address={address} size={head.size} json={kind === "json"} />;
    default:
      return <p class="preview hint">{T.objects.noPreview}</p>;
  }
}

function TextPreview(props: { address: string; size: number; json: boolean }) {
  const [text, setText] = useState("");
  const [words, setWords] = useState("");
  useEffect(() => {
    const leave = new AbortController();
    const read = async () => {
      const headers: Record<string, string> = props.size > TEXT_MOST ? { range: `bytes=0-${TEXT_MOST - 1}` } : {};
      const answer = await call(props.address, { headers, signal: leave.signal });
      const raw = await answer.text();
      setText(props.json && props.size <= TEXT_MOST ? pretty(raw) : raw);
    };
    read().catch((error: unknown) => {
      if (!leave.signal.aborted) setWords(wordsOf(error));
    });
    return () => leave.abort();
  }, [props.address]);
  return (
    <div class="preview">
      <Fault words={words} />
      <pre tabIndex={0} role="group" aria-label={T.objects.preview}>
        {text}
      </pre>
      {props.size > TEXT_MOST ? <p class="hint">{T.objects.firstOf(bytes(TEXT_MOST), bytes(props.size))}</p> : null}
    </div>
  );
}

function pretty(raw: string): string {
  try {
    return JSON.stringify(JSON.parse(raw), null, 2);
  } catch {
    return raw;
  }
}
