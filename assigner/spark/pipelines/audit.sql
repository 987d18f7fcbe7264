-- From the ownership event log to holdings, and from holdings to what is worth a look. Each statement is a temporary
-- view over those before it; a line "-- name: NAME" begins it. {overlap_limit_us} and {most} are filled in.
--
-- A holding is a member's session under one epoch. A run is a stretch in which the log is complete: it begins with
-- "held" and "unowned" lines of all partitions, and nothing is known of what happened between two runs. So a holding
-- that a run leaves open ends, for us, with the run.

-- name: lines
SELECT
    `group`, topic, partition, ts_us, member, session, epoch, event, cause, mode,
    coalesce(term, 0) * 1048576 + coalesce(part, 0) AS run,
    coalesce(seq, 0) AS seq,
    event IN ('released', 'lost', 'away') AS closing,
    event IN ('assigned', 'held', 'back') AS opening
FROM ownership_events

-- name: numbered
-- Each partition's lines in the order in which they happened. One shuffle; all that follows sorts within it.
SELECT
    *,
    row_number() OVER history AS line,
    max(epoch) OVER before AS highest_before
FROM lines
WINDOW
    history AS (PARTITION BY `group`, topic, partition ORDER BY run, seq, ts_us, opening, epoch),
    before AS (
        PARTITION BY `group`, topic, partition ORDER BY run, seq, ts_us, opening, epoch
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    )

-- name: mentions
SELECT
    *,
    lag(event) OVER holding AS event_before,
    lag(run) OVER holding AS run_before
FROM numbered
WINDOW holding AS (PARTITION BY `group`, topic, partition, epoch, member, session ORDER BY line)

-- name: turns
-- Where a holding begins and where it ends. One that began and is mentioned again has no turn there, nor has one that
-- ends without having begun. The first mention of a holding must have an epoch above all that were mentioned before.
SELECT
    *,
    opening AND (event_before IS NULL OR run_before <> run OR event_before IN ('released', 'lost', 'away')) AS begins,
    closing AND coalesce(run_before = run AND event_before IN ('assigned', 'held', 'back'), false) AS ends,
    CASE
        WHEN event = 'assigned' AND event_before IS NOT NULL THEN 'repeated'
        WHEN event = 'back' AND run_before = run AND event_before IN ('released', 'lost') THEN 'repeated'
        WHEN event NOT IN ('assigned', 'held') OR event_before IS NOT NULL THEN NULL
        WHEN epoch < highest_before THEN 'back'
        WHEN epoch = highest_before THEN 'repeated'
    END AS epoch_fault
FROM mentions

-- name: spans
-- Each beginning with its end, if its run tells it; and the lines that say that nobody holds a partition.
SELECT
    `group`, topic, partition, member, session, epoch, event, cause, mode, ts_us, run, line, begins, epoch_fault,
    highest_before,
    CASE WHEN begins AND following.ends AND following.run = run THEN following END AS ending
FROM (
    SELECT
        *,
        lead(CASE WHEN begins OR ends THEN struct(ends, run, line, ts_us, event, cause) END)
            IGNORE NULLS OVER holding AS following
    FROM turns
    WINDOW holding AS (PARTITION BY `group`, topic, partition, epoch, member, session ORDER BY line)
)
WHERE begins OR epoch_fault IS NOT NULL OR event = 'unowned'

-- name: placed
-- `place` orders a partition's lines; the end of a run lies behind all of its lines and before those of the next run.
SELECT
    *,
    struct(run, line) AS place,
    CASE WHEN begins THEN struct(run, coalesce(ending.line, 9223372036854775807) AS line) END AS end_place
FROM spans

-- name: followed
-- What was so before each line: how far the holdings up to then reach, and which one reaches furthest.
SELECT
    *,
    max(end_place) OVER before AS reach,
    max_by(struct(member, epoch, run, ending), end_place) OVER before AS holder_before,
    max_by(struct(member, epoch, run, ending), end_place) OVER so_far AS holder,
    max(CASE WHEN event = 'unowned' THEN struct(place, ts_us) END) OVER so_far AS unowned,
    lead(line) OVER history IS NULL AS is_last
FROM placed
WINDOW
    history AS (PARTITION BY `group`, topic, partition ORDER BY line),
    before AS (
        PARTITION BY `group`, topic, partition ORDER BY line ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ),
    so_far AS (
        PARTITION BY `group`, topic, partition ORDER BY line ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )

-- name: islands
-- Holdings that overlap, directly or by way of others, are an island: few, as a rule, however long the log.
SELECT
    *,
    sum(CASE WHEN begins AND NOT overlapping THEN 1 ELSE 0 END) OVER so_far AS island,
    sum(CASE WHEN begins THEN 1 ELSE 0 END) OVER so_far AS position,
    lead(CASE WHEN begins THEN overlapping END) IGNORE NULLS OVER history AS overlapped
FROM (SELECT *, begins AND coalesce(place < reach, false) AS overlapping FROM followed)
WINDOW
    history AS (PARTITION BY `group`, topic, partition ORDER BY line),
    so_far AS (
        PARTITION BY `group`, topic, partition ORDER BY line ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )

-- name: findings
-- The few lines that the three answers are made of.
SELECT *
FROM (
    SELECT
        *,
        CASE
            WHEN NOT begins OR overlapping OR event = 'held' THEN NULL
            WHEN holder_before.ending IS NOT NULL THEN holder_before.ending.ts_us
            WHEN unowned IS NOT NULL AND (holder_before IS NULL OR unowned.place.run > holder_before.run)
                THEN unowned.ts_us
        END AS gap_before_us,
        CASE
            WHEN NOT is_last THEN NULL
            WHEN holder.ending IS NOT NULL THEN holder.ending.ts_us
            WHEN unowned IS NOT NULL AND (holder IS NULL OR unowned.place.run > holder.run) THEN unowned.ts_us
        END AS gap_after_us
    FROM islands
)
WHERE overlapping OR overlapped OR epoch_fault IS NOT NULL OR gap_before_us < ts_us OR gap_after_us IS NOT NULL

-- name: overlaps
-- Pairs of holdings. A large island is a broken log: each holding is then compared with the {most} before it.
SELECT
    *,
    (end_us - start_us) / 1e6 AS seconds,
    CASE
        WHEN new_epoch <= old_epoch THEN 'double'
        WHEN mode = 'exclusive' THEN 'exclusive'
        WHEN end_us - start_us > {overlap_limit_us} THEN 'late'
        ELSE 'handover'
    END AS kind
FROM (
    SELECT
        old.`group`, old.topic, old.partition,
        old.member AS old_member, old.session AS old_session, old.epoch AS old_epoch,
        new.member AS new_member, new.session AS new_session, new.epoch AS new_epoch,
        min(new.ts_us) AS start_us,
        max_by(least(old.ending.ts_us, new.ending.ts_us), new.place) AS end_us,
        min_by(new.cause, new.place) AS cause,
        min_by(new.mode, new.place) AS mode
    FROM findings AS old
    JOIN findings AS new
        ON old.`group` = new.`group` AND old.topic = new.topic AND old.partition = new.partition
        AND old.island = new.island
        AND old.position < new.position AND new.position <= old.position + {most}
        AND new.place < old.end_place
    WHERE old.begins AND new.begins
    GROUP BY ALL
)

-- name: gaps
SELECT
    *,
    greatest(0, end_us - start_us) / 1e6 AS seconds
FROM (
    SELECT
        `group`, topic, partition,
        CASE
            WHEN holder_before IS NULL THEN 'start'
            WHEN holder_before.ending IS NULL THEN 'unseen'
            WHEN holder_before.ending.event = 'released' THEN 'handover'
            ELSE 'failover'
        END AS kind,
        gap_before_us AS start_us, ts_us AS end_us,
        holder_before.member AS old_member, holder_before.epoch AS old_epoch, holder_before.ending.event AS ended_by,
        member AS new_member, epoch AS new_epoch, cause, mode
    FROM findings
    WHERE gap_before_us < ts_us AND coalesce(holder_before.ending.cause, '') <> 'removed'
    UNION ALL
    SELECT
        `group`, topic, partition,
        CASE
            WHEN holder IS NULL THEN 'start'
            WHEN holder.ending IS NULL THEN 'unseen'
            WHEN holder.ending.event = 'released' THEN 'handover'
            ELSE 'failover'
        END,
        gap_after_us, NULL,
        holder.member, holder.epoch, holder.ending.event,
        NULL, NULL, NULL, mode
    FROM findings
    WHERE gap_after_us IS NOT NULL AND coalesce(holder.ending.cause, '') <> 'removed'
)

-- name: epochs
SELECT
    `group`, topic, partition, epoch_fault AS kind, ts_us, member, session, epoch, highest_before, event, cause
FROM findings
WHERE epoch_fault IS NOT NULL
