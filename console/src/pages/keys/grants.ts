// Grants as the editor holds them, and as the server writes them.
import { send } from "../../data/http";

export const ACTIONS = ["read", "list", "write", "delete", "bucket", "admin"] as const;
export type Action = (typeof ACTIONS)[number];

export interface Grant {
  id: number;
  actions: Set<Action>;
  bucket: string;
  prefix: string;
}

let next = 1;

export function newGrant(actions: Action[] = ["read", "list"], bucket = "", prefix = ""): Grant {
  next += 1;
  return { id: next, actions: new Set(actions), bucket, prefix };
}

// `read,list photos/in/*`; without a bucket, the whole store.
export function write(grant: Grant): string {
  const actions = ACTIONS.filter((action) => grant.actions.has(action)).join(",");
  const bucket = grant.bucket.trim() || "*";
  const prefix = grant.prefix.trim();
  return `${actions} ${bucket}${prefix ? `/${prefix}*` : bucket.endsWith("*") ? "" : "/*"}`;
}

export async function explain(grants: string[]): Promise<string[]> {
  if (grants.length === 0) return [];
  const answer = await send<{ sentences: string[] }>("POST", "/api/grants/explain", { grants });
  return answer?.sentences ?? [];
}
