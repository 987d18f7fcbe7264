-- From the ownership event log to holdings, and from holdings to what is worth a look. Each statement is a temporary
-- view over those before it; a line "-- name: NAME" begins it. {overlap_limit_us} and {most} are filled in.
--
-- A holding is a member's session under one epoch. A run is a stretch in which the log is complete: it begins with
-- "held" and "unowned" lines of all partitions, and nothing is known of what happened between two runs. So a holding
-- that a run leaves open ends, for us, with the run.

-- name: lines
-- Numbers are sorted faster than names. 128 bits stand for a partition: that two of a million partitions have the same
-- is less likely than that a disk lies. Of a partition and epoch, 64 bits stand for who holds it.
SELECT
    xxhash64(`group`, topic, partition) AS tp,
    xxhash64(partition, topic, `group`, 'tp') AS tp_too,
    xxhash64(member, session) AS who,
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
    history AS (PARTITION BY tp, tp_too ORDER BY run, seq, ts_us, opening, epoch),
    before AS (
        PARTITION BY tp, tp_too ORDER BY run, seq, ts_us, opening, epoch
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    )

-- name: mentions
SELECT
    *,
    lag(event) OVER holding_lines AS event_before,
    lag(run) OVER holding_lines AS run_before
FROM numbered
WINDOW holding_lines AS (PARTITION BY tp, tp_too, epoch, who ORDER BY line)

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
-- Each beginning with its end, if its run tells it; and the lines that say that nobody holds a partition. The end of
-- a run lies behind all of its lines, and before those of the next run.
SELECT
    tp, tp_too, `group`, topic, partition, event, cause, mode, ts_us, begins, epoch_fault, highest_before,
    struct(run, line) AS place,
    struct(
        run,
        CASE WHEN ended THEN following.line ELSE 9223372036854775807 END AS line,
        CASE WHEN ended THEN following.ts_us END AS until_us,
        CASE WHEN ended THEN following.event END AS until_event,
        ended AND following.cause = 'removed' AS removed,
        epoch, member, session
    ) AS held
FROM (
    SELECT *, coalesce(begins AND following.ends AND following.run = run, false) AS ended
    FROM (
        SELECT
            *,
            lead(CASE WHEN begins OR ends THEN struct(ends, run, line, ts_us, event, cause) END)
                IGNORE NULLS OVER holding_lines AS following
        FROM turns
        WINDOW holding_lines AS (PARTITION BY tp, tp_too, epoch, who ORDER BY line)
    )
)
WHERE begins OR epoch_fault IS NOT NULL OR event = 'unowned'

-- name: followed
-- What was so before each line: the last two holdings, how far those before them reach, and the one that reaches
-- furthest of all. Nearly all overlaps are with one of the last two; the others are looked for apart.
SELECT
    *,
    lag(CASE WHEN begins THEN held END) OVER history AS last_held,
    lag(CASE WHEN begins THEN held END, 2) OVER history AS last_but_one,
    max(CASE WHEN begins THEN struct(held.run, held.line) END) OVER long_before AS reach_before_those,
    lead(place, 3) OVER history AS place_after_two,
    max(CASE WHEN begins THEN held END) OVER before AS furthest,
    max(CASE WHEN event = 'unowned' THEN struct(place, ts_us) END) OVER so_far AS unowned,
    row_number() OVER history AS position,
    lead(ts_us) OVER history IS NULL AS is_last
FROM spans
WINDOW
    history AS (PARTITION BY tp, tp_too ORDER BY place.line),
    long_before AS (PARTITION BY tp, tp_too ORDER BY place.line ROWS BETWEEN UNBOUNDED PRECEDING AND 3 PRECEDING),
    before AS (PARTITION BY tp, tp_too ORDER BY place.line ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
    so_far AS (PARTITION BY tp, tp_too ORDER BY place.line ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)

-- name: findings
-- The lines that the three answers are made of, flat, because they are kept: beside each holding the one or two of
-- the last two that it overlaps with, and the gap before it or, of a partition's last line, after it.
SELECT *
FROM (
    SELECT
        `group`, topic, partition, event, cause, mode, ts_us, place.run, place.line, position,
        held.member, held.session, held.epoch, held.until_us, held.line AS until_line,
        CASE WHEN begins AND struct(last_held.run, last_held.line) > place THEN last_held.member END AS old_member,
        last_held.session AS old_session, last_held.epoch AS old_epoch, last_held.until_us AS old_until_us,
        CASE WHEN begins AND struct(last_but_one.run, last_but_one.line) > place THEN last_but_one.member END
            AS older_member,
        last_but_one.session AS older_session, last_but_one.epoch AS older_epoch,
        last_but_one.until_us AS older_until_us,
        begins AND coalesce(place < reach_before_those, false) AS overlaps_long_before,
        begins AND coalesce(place_after_two < struct(held.run, held.line), false) AS lasts_long,
        epoch_fault, highest_before,
        CASE
            WHEN NOT begins OR event = 'held' OR furthest.removed THEN NULL
            WHEN struct(furthest.run, furthest.line) > place THEN NULL
            WHEN furthest.until_us IS NOT NULL THEN furthest.until_us
            WHEN furthest IS NULL OR unowned.place.run > furthest.run THEN unowned.ts_us
        END AS gap_before_us,
        furthest.member AS gap_member, furthest.epoch AS gap_epoch, furthest.until_event AS gap_event,
        CASE
            WHEN NOT is_last OR furthest_now.removed THEN NULL
            WHEN furthest_now.until_us IS NOT NULL THEN furthest_now.until_us
            WHEN furthest_now IS NULL OR unowned.place.run > furthest_now.run THEN unowned.ts_us
        END AS gap_after_us,
        furthest_now.member AS last_member, furthest_now.epoch AS last_epoch, furthest_now.until_event AS last_event
    FROM (SELECT *, greatest(furthest, CASE WHEN begins THEN held END) AS furthest_now FROM followed)
)
WHERE old_member IS NOT NULL OR older_member IS NOT NULL OR overlaps_long_before OR lasts_long
    OR epoch_fault IS NOT NULL OR gap_before_us < ts_us OR gap_after_us IS NOT NULL

-- name: pairs
-- Of a log without ends, in which each holding overlaps with all before it, each is paired with {most} of them.
SELECT
    `group`, topic, partition, old_member, old_session, old_epoch,
    member AS new_member, session AS new_session, epoch AS new_epoch,
    event, cause, mode, line, ts_us AS start_us, least(old_until_us, until_us) AS end_us
FROM findings
WHERE old_member IS NOT NULL
UNION ALL
SELECT
    `group`, topic, partition, older_member, older_session, older_epoch, member, session, epoch,
    event, cause, mode, line, ts_us, least(older_until_us, until_us)
FROM findings
WHERE older_member IS NOT NULL
UNION ALL
SELECT
    new.`group`, new.topic, new.partition, old.member, old.session, old.epoch, new.member, new.session, new.epoch,
    new.event, new.cause, new.mode, new.line, new.ts_us, least(old.until_us, new.until_us)
FROM (SELECT * FROM findings WHERE overlaps_long_before) AS new
JOIN (SELECT * FROM findings WHERE lasts_long) AS old
    ON old.`group` = new.`group` AND old.topic = new.topic AND old.partition = new.partition
    AND old.position < new.position - 2 AND old.position >= new.position - {most}
    AND old.run = new.run AND old.until_line > new.line

-- name: overlaps
-- A pair that a run leaves unchanged is logged again by the next run, and counts as one overlap.
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
    SELECT * EXCEPT (event, line) FROM pairs WHERE event <> 'held' AND end_us IS NOT NULL
    UNION ALL
    SELECT
        `group`, topic, partition, old_member, old_session, old_epoch, new_member, new_session, new_epoch,
        min_by(cause, line), min_by(mode, line), min(start_us), max_by(end_us, line)
    FROM pairs
    WHERE event = 'held' OR end_us IS NULL
    GROUP BY `group`, topic, partition, old_member, old_session, old_epoch, new_member, new_session, new_epoch
)

-- name: gaps
SELECT
    *,
    greatest(0, end_us - start_us) / 1e6 AS seconds,
    CASE
        WHEN old_member IS NULL THEN 'start'
        WHEN ended_by IS NULL THEN 'unseen'
        WHEN ended_by = 'released' THEN 'handover'
        ELSE 'failover'
    END AS kind
FROM (
    SELECT
        `group`, topic, partition, gap_before_us AS start_us, ts_us AS end_us,
        gap_member AS old_member, gap_epoch AS old_epoch, gap_event AS ended_by,
        member AS new_member, epoch AS new_epoch, cause, mode
    FROM findings
    WHERE gap_before_us < ts_us
    UNION ALL
    SELECT
        `group`, topic, partition, gap_after_us, NULL, last_member, last_epoch, last_event, NULL, NULL, NULL, mode
    FROM findings
    WHERE gap_after_us IS NOT NULL
)

-- name: epochs
SELECT
    `group`, topic, partition, epoch_fault AS kind, ts_us, member, session, epoch, highest_before, event, cause
FROM findings
WHERE epoch_fault IS NOT NULL
