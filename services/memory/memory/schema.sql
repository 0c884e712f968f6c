-- Times are microseconds since 1970.

CREATE TABLE IF NOT EXISTS embedder (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    name TEXT NOT NULL
) STRICT;

-- A namespace as it is (snapshot_name ''), or a snapshot of it.
CREATE TABLE IF NOT EXISTS scopes (
    scope INTEGER PRIMARY KEY,
    namespace TEXT NOT NULL,
    snapshot_name TEXT NOT NULL,
    create_us INTEGER NOT NULL,
    UNIQUE (namespace, snapshot_name)
) STRICT;

-- The vector stands before the texts, so that reading all vectors passes over none of them.
CREATE TABLE IF NOT EXISTS memories (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    scope INTEGER NOT NULL REFERENCES scopes,
    memory_id TEXT NOT NULL,
    utility REAL NOT NULL,
    recall_count INTEGER NOT NULL,
    credit_count INTEGER NOT NULL,
    create_us INTEGER NOT NULL,
    update_us INTEGER NOT NULL,
    vector BLOB NOT NULL,
    intent TEXT NOT NULL,
    experience TEXT NOT NULL,
    UNIQUE (scope, memory_id)
) STRICT;
CREATE INDEX IF NOT EXISTS memories_by_age ON memories (scope, position);

-- Recalls of rollouts, those too that returned nothing.
CREATE TABLE IF NOT EXISTS recalls (
    rollout_id TEXT NOT NULL,
    recall_key TEXT NOT NULL,
    PRIMARY KEY (rollout_id, recall_key)
) STRICT, WITHOUT ROWID;

-- What they returned, and how each was chosen.
CREATE TABLE IF NOT EXISTS uses (
    rollout_id TEXT NOT NULL,
    recall_key TEXT NOT NULL,
    rank INTEGER NOT NULL,
    position INTEGER NOT NULL,
    similarity REAL NOT NULL,
    score REAL NOT NULL,
    PRIMARY KEY (rollout_id, recall_key, rank)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS uses_by_position ON uses (position);

-- Credits that were applied; those of source 'event' have the event's id.
CREATE TABLE IF NOT EXISTS credits (
    source TEXT NOT NULL,
    credit_id TEXT NOT NULL,
    digest TEXT NOT NULL,
    create_us INTEGER NOT NULL,
    PRIMARY KEY (source, credit_id)
) STRICT, WITHOUT ROWID;

-- What each credit changed.
CREATE TABLE IF NOT EXISTS credited (
    source TEXT NOT NULL,
    credit_id TEXT NOT NULL,
    rank INTEGER NOT NULL,
    namespace TEXT NOT NULL,
    memory_id TEXT NOT NULL,
    previous_utility REAL NOT NULL,
    utility REAL NOT NULL,
    PRIMARY KEY (source, credit_id, rank)
) STRICT, WITHOUT ROWID;
