-- A group: one prompt and its samples. Samples have rows of their own (units) only where their story
-- differs from their group's: failures counted and where, a suspicion, an episode begun again, an end of their own.
CREATE TABLE IF NOT EXISTS groups (
  id INTEGER PRIMARY KEY, lineage INTEGER NOT NULL, position INTEGER NOT NULL, step INTEGER NOT NULL,
  slot INTEGER NOT NULL, validation INTEGER, state INTEGER NOT NULL, cause TEXT NOT NULL,
  size INTEGER NOT NULL, admitted REAL NOT NULL, ended_step INTEGER NOT NULL, ended REAL NOT NULL,
  seal BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS live_groups ON groups(state) WHERE state IN (1, 3);
CREATE TABLE IF NOT EXISTS units (
  group_id INTEGER, idx INTEGER, state INTEGER NOT NULL, cause TEXT NOT NULL, failures INTEGER NOT NULL,
  life INTEGER NOT NULL, hurdle INTEGER NOT NULL, company INTEGER NOT NULL,
  PRIMARY KEY (group_id, idx)) WITHOUT ROWID;
-- What one message of a worker added to one group: its parts (`record.FORMAT`), packed, and the segment of their
-- payloads. Appended in the order of arrival, with an index: rows in the order of their key would touch as many
-- pages in each commit as there are groups in flight.
CREATE TABLE IF NOT EXISTS parts (
  group_id INTEGER NOT NULL, worker TEXT NOT NULL, at REAL NOT NULL, segment INTEGER NOT NULL,
  packed BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS parts_of ON parts(group_id);
CREATE TABLE IF NOT EXISTS failures (
  group_id INTEGER, idx INTEGER, stage TEXT, turn INTEGER, attempt INTEGER, cause TEXT, message TEXT,
  worker TEXT, lease INTEGER, at REAL);
CREATE INDEX IF NOT EXISTS failures_of ON failures(group_id);
-- Step N and its ordered groups (packed 64-bit ids); `previous` chains the digests. `max_staleness` is the bound under
-- which it was formed: a job that was suspended may come back with another.
CREATE TABLE IF NOT EXISTS batches (
  lineage INTEGER, step INTEGER, edition INTEGER, state INTEGER NOT NULL, groups BLOB NOT NULL,
  samples INTEGER NOT NULL, tokens INTEGER NOT NULL, digest BLOB NOT NULL, previous BLOB NOT NULL,
  oldest INTEGER, attempts INTEGER NOT NULL, reward REAL NOT NULL, staleness REAL NOT NULL,
  formed REAL NOT NULL, acquired_term INTEGER NOT NULL, max_staleness INTEGER NOT NULL,
  PRIMARY KEY (lineage, step, edition)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS batches_by_step ON batches(step);
CREATE TABLE IF NOT EXISTS steps (
  lineage INTEGER, step INTEGER, term INTEGER, metrics TEXT, at REAL,
  PRIMARY KEY (lineage, step)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS versions (
  lineage INTEGER, number INTEGER, term INTEGER, digest TEXT, locations TEXT,
  PRIMARY KEY (lineage, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS checkpoints (
  path TEXT PRIMARY KEY, lineage INTEGER, step INTEGER, digest TEXT, term INTEGER, at REAL,
  retained INTEGER NOT NULL DEFAULT 1);
CREATE TABLE IF NOT EXISTS validations (
  lineage INTEGER, version INTEGER, groups INTEGER, done INTEGER, total REAL, scored INTEGER,
  finished INTEGER, PRIMARY KEY (lineage, version)) WITHOUT ROWID;
-- What pruned groups leave: their ids, how many rows they had, their samples' ends and failures, and a digest over
-- their seals (`contents`); `digest` chains all of it.
CREATE TABLE IF NOT EXISTS folds (
  id INTEGER PRIMARY KEY, lineage INTEGER, step INTEGER, groups BLOB NOT NULL, samples INTEGER NOT NULL,
  parts INTEGER NOT NULL, ends TEXT NOT NULL, contents BLOB NOT NULL, digest BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
