// One body sent with progress: fetch reports none of what it sends, so this is an XMLHttpRequest.
import { connectionLost, csrf, sessionOver } from "../../../app/session";
import { RequestError } from "../../../data/http";
import { errorOf } from "../../../data/s3";
import { T } from "../../../texts";

export interface Sent {
  etag: string;
}

export function put(
  address: string,
  body: Blob,
  headers: Record<string, string>,
  signal: AbortSignal,
  onProgress: (bytes: number) => void,
): Promise<Sent> {
  return new Promise((done, fail) => {
    const sending = new XMLHttpRequest();
    sending.open("PUT", address);
    sending.setRequestHeader("x-shoal-csrf", csrf());
    for (const [name, value] of Object.entries(headers)) sending.setRequestHeader(name, value);
    sending.upload.onprogress = (event) => onProgress(event.loaded);
    const abort = () => sending.abort();
    signal.addEventListener("abort", abort, { once: true });
    const end = () => signal.removeEventListener("abort", abort);
    sending.onload = () => {
      end();
      if (sending.status >= 200 && sending.status < 300) {
        onProgress(body.size);
        done({ etag: sending.getResponseHeader("etag") ?? "" });
        return;
      }
      if (sending.status === 401) sessionOver();
      void errorOf(new Response(sending.responseText, { status: sending.status })).then(fail);
    };
    sending.onerror = () => {
      end();
      connectionLost();
      fail(new RequestError(0, T.errors.noAnswer));
    };
    sending.onabort = () => {
      end();
      fail(new DOMException("aborted", "AbortError"));
    };
    sending.send(body);
  });
}
