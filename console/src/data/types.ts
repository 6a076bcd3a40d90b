// The JSON of the console's server, as docs/operate/console.md describes it.

export interface May {
  admin: boolean;
  read: boolean;
  list: boolean;
  write: boolean;
  delete: boolean;
  bucket: boolean;
}

export interface Session {
  signed_in: true;
  identity: string;
  csrf: string;
  expires_ms: number;
  asks: boolean;
  may: May;
  s3: string | null;
}

export interface Warning {
  id: string;
  // Requests fail because of it.
  severe: boolean;
  text: string;
  action: string;
  docs: string;
}

export interface Quantiles {
  p50_us: number | null;
  p99_us: number | null;
  p999_us: number | null;
  max_us: number | null;
  count: number;
  window_s: number;
}

export interface FrontendSample {
  name: string;
  per_s: Record<string, number>;
  failed_per_s: number;
  received_per_s: number;
  sent_per_s: number;
  connections: number;
  memory_bytes: number;
}

export interface Room {
  cap_bytes: number;
  file_bytes: number;
  used_bytes: number;
  taken_bytes: number;
  free_bytes: number;
  disk_free_bytes: number | null;
  log_ring_bytes: number;
  hole_bytes: number;
  largest_free_run_bytes: number;
  cannot_grow: string | null;
}

export interface Background {
  applies_per_s: number;
  page_bytes_per_s: number;
  home_bytes_per_s: number;
  merges_per_s: number;
  merge_bytes_per_s: number;
  layers: number;
  layers_most: number;
  relocation_paused: boolean;
  groups_to_empty: number;
  groups_closed: number;
  bytes_to_move: number;
  moved_bytes_per_s: number;
  growth_bytes_per_s: number;
  discarded_bytes_per_s: number;
  paused_ms_per_s: number;
}

export interface Sample {
  at_ms: number;
  uptime_s: number;
  version: string;
  health: { ready: boolean; reason: string | null; warnings: Warning[] };
  room: Room;
  objects: { count: number; unsettled: number; bytes: number; expiring: number; bucket_records: number };
  frontends: FrontendSample[];
  latency: { put: Quantiles; get: Quantiles };
  cache: { hit_rate: number | null; bytes: number; capacity_bytes: number };
  commit: {
    batches_per_s: number;
    records_per_batch: number | null;
    flush_p50_us: number | null;
    flush_p99_us: number | null;
    bytes_per_s: number;
  };
  log: { used_bytes: number; ring_bytes: number };
  memtable: { bytes: number; max_bytes: number | null; records: number };
  background: Background;
  device: {
    reads_per_s: number;
    read_bytes_per_s: number;
    writes_per_s: number;
    write_bytes_per_s: number;
    flushes_per_s: number;
  };
  scrub: { running: boolean | null; passes: number; bytes: number; problems: number; ended_ms: number | null };
  backup: { version: number | string; at_ms: number } | null;
  damage: { ranges: number; losses: number };
  process: {
    cpu_cores: number;
    rss_bytes: number;
    threads: number | null;
    memory_total_bytes: number;
    memory_parts: { name: string; bytes: number }[];
  };
  heat: { put: number[]; get: number[] };
}

export interface History {
  heat_edges_us: number[];
  samples: Sample[];
}

export interface RunClass {
  blocks_at_least: number;
  runs: number;
  blocks: number;
}

export interface Space {
  blocks: number;
  block_bytes: number;
  cell_blocks: number;
  group_blocks: number;
  free: number[];
  kind?: number[];
  kinds?: string[];
  bucket?: number[];
  buckets?: string[];
  closed: number[];
  // The time of the census that knows pages, packed runs and extents.
  census_ms?: number;
  // False until the server has walked over all groups once.
  runs_are_complete?: boolean;
  runs_by_size: RunClass[];
}

export interface Census {
  running: boolean;
  // So far.
  pages: number;
  objects: number;
  taken: {
    started_ms: number;
    ended_ms: number;
    objects: number;
    buckets?: { name: string; objects: number; bytes: number }[];
    others: { objects: number; bytes: number };
  } | null;
}

export interface SlowRequest {
  at_ms: number;
  frontend: string;
  operation: string;
  // Known only with an access log or an audit log.
  bucket: string | null;
  key: string | null;
  result: string;
  total_us: number;
  queue_us: number;
  store_us: number;
  log_us: number;
  answer_us: number;
  times?: number;
  peer: string;
}

export interface SlowRequests {
  slow_ms: number | null;
  requests: SlowRequest[];
}

export interface Archive {
  state: string;
  words: string;
  lag_s: number;
  lag_bytes: number;
  version: number;
  spool_bytes: number;
  spool_bytes_max: number;
  gaps: number;
  segment_bytes: number;
  requests: number;
  failures: number;
  base_taken_s: number | null;
  base_bytes: number;
  base_bytes_expected: number;
  log_bytes_since_base: number;
  oldest_s: number | null;
}

export interface ConnectionsOf {
  name: string;
  open: number;
  opened: number;
  refused: number;
  evicted: number;
  overdue: number;
  memory_bytes: number;
}

export interface Option {
  name: string;
  value: string;
  default: string | null;
  is_default: boolean;
}

export interface Config {
  options?: Option[];
  lines?: string[];
}

export interface KeyEntry {
  id: string;
  name: string;
  grants: string[];
  expires_ms: number | null;
  certificate: string | null;
  rotated_until_ms: number | null;
  is_this_session: boolean;
}

export interface KeyList {
  file: string | null;
  keys: KeyEntry[];
}

export interface NewSecret {
  id: string;
  secret: string;
}
