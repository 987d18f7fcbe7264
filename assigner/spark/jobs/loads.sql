-- From samples of load to a weight per partition. A sample tells what was handled since the one before it; the first of
-- a partition gives no rate, because its interval is unknown. {amount} is bytes or records, {smoothing_us} how long a
-- rate counts, {weight} the column that becomes the weight.

-- name: rates
SELECT `group`, topic, partition, ts_us, span_us, amount * 1e6 / span_us AS rate
FROM (
    SELECT
        `group`, topic, partition, ts_us, greatest({amount}, 0) AS amount,
        ts_us - lag(ts_us) OVER (PARTITION BY `group`, topic, partition ORDER BY ts_us) AS span_us
    FROM load_samples
)
WHERE span_us > 0

-- name: latest
SELECT `group`, max(ts_us) AS now_us FROM rates GROUP BY `group`

-- name: weights
-- The moving average of a rate, each weighed by how long it lasted and how long ago it was: the same number that
-- smoothing sample by sample comes to, and in any order.
SELECT *, {weight} AS weight
FROM (
    SELECT
        `group`, topic, partition,
        sum(rate * share) / sum(share) AS ewma,
        CAST(percentile_approx(rate, 0.95, 10000) AS DOUBLE) AS p95,
        count(*) AS samples,
        max(ts_us) AS last_us
    FROM (
        SELECT
            rates.*,
            exp((ts_us - now_us) / {smoothing_us}) - exp((ts_us - span_us - now_us) / {smoothing_us}) AS share
        FROM rates
        JOIN latest USING (`group`)
    )
    GROUP BY `group`, topic, partition
    HAVING sum(share) > 0
)
