// Objects: the buckets, or the inside of one.
import { decode, route } from "../../app/router";
import { Buckets } from "./buckets";
import { FolderView } from "./folder";

export function Objects() {
  const rest = route.value.rest;
  if (!rest) return <Buckets />;
  const slash = rest.indexOf("/");
  const bucket = decode(slash < 0 ? rest : rest.slice(0, slash));
  const prefix = slash < 0 ? "" : rest.slice(slash + 1).split("/").map(decode).join("/");
  return <FolderView key={`${bucket}/${prefix}`} bucket={bucket} prefix={prefix} />;
}
