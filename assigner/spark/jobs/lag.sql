-- Lag attributed to owners and to moves. Samples and ownership events are laid on one line per partition, in the order
-- of the clocks, and each sample takes what was last said of the owner. {window_us}: how long after a move its lag is
-- looked at.

-- name: changes
-- Who owns a partition after each event: of those who hold it, the one with the highest epoch. A line that changes
-- nothing, such as the release of the old owner after an overlapping handover, has no `owner` to pass on.
SELECT
    `group`, topic, partition, ts_us, event, cause, member, epoch,
    CASE
        WHEN event IN ('assigned', 'held', 'back') AND epoch >= coalesce(highest, 0) THEN member
        WHEN event = 'unowned' OR (event IN ('released', 'lost', 'away') AND epoch >= coalesce(highest, 0)) THEN ''
    END AS owner
FROM (
    SELECT
        *,
        max(epoch) OVER (
            PARTITION BY `group`, topic, partition
            ORDER BY ts_us, term, part, seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS highest
    FROM ownership_events
)

-- name: moves
-- A move: another owner than the last one there was.
SELECT *
FROM (
    SELECT
        `group`, topic, partition, ts_us, owner AS new_owner, cause,
        lag(owner) OVER (PARTITION BY `group`, topic, partition ORDER BY ts_us, epoch) AS old_owner
    FROM changes
    WHERE owner <> ''
)
WHERE old_owner <> new_owner

-- name: line
SELECT
    `group`, topic, partition, ts_us, 0 AS kind,
    owner, CAST(NULL AS STRUCT<ts_us: BIGINT, old_owner: STRING, new_owner: STRING, cause: STRING>) AS move,
    CAST(NULL AS BIGINT) AS lag, epoch AS tie
FROM changes
WHERE owner IS NOT NULL
UNION ALL
SELECT `group`, topic, partition, ts_us, 1, NULL, struct(ts_us, old_owner, new_owner, cause), NULL, 0 FROM moves
UNION ALL
SELECT `group`, topic, partition, ts_us, 2, NULL, NULL, lag, 0 FROM lag_samples

-- name: carried
SELECT
    *,
    last(owner, true) OVER so_far AS owner_now,
    last(move, true) OVER so_far AS move_now,
    last(before_move, true) OVER so_far AS lag_before,
    ts_us - lag(CASE WHEN kind = 2 THEN ts_us END) IGNORE NULLS OVER history AS span_us
FROM (
    SELECT
        *,
        CASE WHEN kind = 1 THEN coalesce(last(lag, true) OVER so_far, -1) END AS before_move
    FROM line
    WINDOW so_far AS (
        PARTITION BY `group`, topic, partition ORDER BY ts_us, kind, tie
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )
)
WINDOW
    history AS (PARTITION BY `group`, topic, partition ORDER BY ts_us, kind, tie),
    so_far AS (
        PARTITION BY `group`, topic, partition ORDER BY ts_us, kind, tie
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )

-- name: attributed
-- The samples, each with its owner ('' for nobody) and with the last move before it.
SELECT
    `group`, topic, partition, ts_us, lag,
    coalesce(owner_now, '') AS owner, move_now AS move,
    CASE WHEN lag_before >= 0 THEN lag_before END AS lag_before,
    span_us
FROM carried
WHERE kind = 2

-- name: owners
-- `share`: of the group's whole lag over the time. `growth`: records it fell behind, net, while it was the owner.
SELECT
    `group`, owner, partitions, samples, mean_lag, p95_lag, max_lag, growth,
    lag_seconds / nullif(sum(lag_seconds) OVER (PARTITION BY `group`), 0) AS share
FROM (
    SELECT
        `group`, owner,
        count(DISTINCT topic, partition) AS partitions,
        count(*) AS samples,
        avg(lag) AS mean_lag,
        CAST(percentile_approx(lag, 0.95, 10000) AS DOUBLE) AS p95_lag,
        max(lag) AS max_lag,
        sum(grown) AS growth,
        sum(lag * coalesce(span_us, 0)) / 1e6 AS lag_seconds
    FROM (
        SELECT
            *,
            CASE WHEN lag(owner) OVER history = owner THEN lag - lag(lag) OVER history END AS grown
        FROM attributed
        WINDOW history AS (PARTITION BY `group`, topic, partition ORDER BY ts_us)
    )
    GROUP BY `group`, owner
)

-- name: costs
-- What each move cost: the lag before, the worst within the window, and how long until it was back where it was.
SELECT
    `group`, topic, partition, move.ts_us, move.old_owner, move.new_owner, move.cause,
    lag_before, peak_lag, peak_lag - lag_before AS added_lag,
    min(CASE WHEN ts_us >= peak_us AND lag <= lag_before THEN ts_us END - move.ts_us) / 1e6 AS recovered_s
FROM (
    SELECT
        *,
        max(lag) OVER of_move AS peak_lag,
        max_by(ts_us, lag) OVER of_move AS peak_us
    FROM attributed
    WHERE move IS NOT NULL AND ts_us <= move.ts_us + {window_us}
    WINDOW of_move AS (PARTITION BY `group`, topic, partition, move)
)
GROUP BY `group`, topic, partition, move, lag_before, peak_lag
