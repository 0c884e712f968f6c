-- The archive. Times are microseconds since 1970, UTC; span times are nanoseconds.

CREATE TABLE IF NOT EXISTS cursor (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  -- Last stream sequence whose event is stored.
  sequence INTEGER NOT NULL
);

CREATE TABLE IF NOT EXISTS events (
  -- Order of arrival, which is the order of the stream.
  position INTEGER PRIMARY KEY,
  event_id TEXT NOT NULL UNIQUE,
  sequence INTEGER NOT NULL,
  run_id TEXT NOT NULL,
  rollout_id TEXT NOT NULL,
  type TEXT NOT NULL,
  create_us INTEGER NOT NULL,
  -- The whole envelope, but for the record of a finished event, which lies in records.
  envelope BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS events_by_run ON events (run_id, position);
CREATE INDEX IF NOT EXISTS events_by_type ON events (run_id, type, position);
CREATE INDEX IF NOT EXISTS events_by_rollout ON events (rollout_id, position);

CREATE TABLE IF NOT EXISTS records (
  event_id TEXT PRIMARY KEY,
  rollout_id TEXT NOT NULL,
  record BLOB,
  -- Why record is null: the blob was gone or damaged when it was fetched.
  error TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS records_by_rollout ON records (rollout_id);

CREATE TABLE IF NOT EXISTS conflicts (
  id INTEGER PRIMARY KEY,
  -- Of an event that tells another fact than the one that events holds under this id.
  event_id TEXT NOT NULL,
  -- Last position of events when it came.
  position INTEGER NOT NULL,
  sequence INTEGER NOT NULL,
  run_id TEXT NOT NULL,
  -- What differs, a line each.
  differences TEXT NOT NULL,
  envelope BLOB NOT NULL,
  record BLOB,
  record_error TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS conflicts_by_run ON conflicts (run_id, id);
CREATE INDEX IF NOT EXISTS conflicts_by_event ON conflicts (event_id);

CREATE TABLE IF NOT EXISTS runs (
  run_id TEXT PRIMARY KEY,
  first_position INTEGER NOT NULL,
  last_sequence INTEGER NOT NULL,
  algorithm TEXT NOT NULL DEFAULT '',
  start_us INTEGER,
  end_us INTEGER,
  -- completed, stopped or failed; empty while active.
  end TEXT NOT NULL DEFAULT '',
  end_detail TEXT NOT NULL DEFAULT '',
  -- When the stream's copy of the run was purged.
  sealed_us INTEGER
);
CREATE INDEX IF NOT EXISTS runs_by_position ON runs (first_position);

CREATE TABLE IF NOT EXISTS steps (
  run_id TEXT NOT NULL,
  step INTEGER NOT NULL,
  policy_version INTEGER NOT NULL,
  metrics_json TEXT NOT NULL,
  PRIMARY KEY (run_id, step)
);
-- Only steps that raised an alarm: lists of runs count them without reading figures.
CREATE INDEX IF NOT EXISTS steps_with_alarms ON steps (run_id) WHERE instr(metrics_json, '"alarms/') > 0;

CREATE TABLE IF NOT EXISTS rollouts (
  rollout_id TEXT PRIMARY KEY,
  run_id TEXT NOT NULL,
  first_position INTEGER NOT NULL,
  phase TEXT NOT NULL DEFAULT '',
  step INTEGER NOT NULL DEFAULT 0,
  group_index INTEGER NOT NULL DEFAULT 0,
  sample_index INTEGER NOT NULL DEFAULT 0,
  attempt INTEGER NOT NULL DEFAULT 0,
  task_id TEXT NOT NULL DEFAULT '',
  -- scored, masked, failed or open.
  outcome TEXT NOT NULL DEFAULT 'open',
  score REAL,
  kind TEXT NOT NULL DEFAULT '',
  failure_kind TEXT NOT NULL DEFAULT '',
  failure_detail TEXT NOT NULL DEFAULT '',
  turn_count INTEGER NOT NULL DEFAULT 0,
  tool_call_count INTEGER NOT NULL DEFAULT 0,
  sampled_token_count INTEGER NOT NULL DEFAULT 0,
  policy_version INTEGER NOT NULL DEFAULT 0,
  request_us INTEGER,
  start_us INTEGER,
  seconds REAL,
  trained_in_step INTEGER
);
CREATE INDEX IF NOT EXISTS rollouts_by_run ON rollouts (run_id, first_position);
CREATE INDEX IF NOT EXISTS rollouts_by_slot ON rollouts (run_id, phase, step, group_index, sample_index);
CREATE INDEX IF NOT EXISTS rollouts_by_outcome ON rollouts (run_id, outcome, first_position);
CREATE INDEX IF NOT EXISTS rollouts_by_score ON rollouts (run_id, outcome, score);

CREATE TABLE IF NOT EXISTS spans (
  trace_id TEXT NOT NULL,
  span_id TEXT NOT NULL,
  parent_span_id TEXT NOT NULL,
  service_name TEXT NOT NULL,
  name TEXT NOT NULL,
  kind TEXT NOT NULL,
  start_ns INTEGER NOT NULL,
  end_ns INTEGER NOT NULL,
  status TEXT NOT NULL,
  status_message TEXT NOT NULL,
  -- Attributes, links and events, with their types.
  detail_json TEXT NOT NULL,
  PRIMARY KEY (trace_id, span_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS spans_by_service ON spans (service_name, name, start_ns);
