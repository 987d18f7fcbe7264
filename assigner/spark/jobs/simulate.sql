-- From one row per group and strategy to one per strategy, the best choice first.

-- name: summary
SELECT
    strategy,
    count(*) AS groups,
    sum(moves) / sum(changes) AS moves_per_change,
    CAST(percentile_approx(moves / changes, 0.05, 10000) AS DOUBLE) AS moves_p05,
    CAST(percentile_approx(moves / changes, 0.95, 10000) AS DOUBLE) AS moves_p95,
    avg(imbalance_mean) AS imbalance,
    CAST(percentile_approx(imbalance_mean, 0.05, 10000) AS DOUBLE) AS imbalance_p05,
    CAST(percentile_approx(imbalance_mean, 0.95, 10000) AS DOUBLE) AS imbalance_p95,
    max(imbalance_max) AS imbalance_max,
    sum(pause_s) / nullif(sum(hours), 0) * 24 / 60 AS pause_min_per_day,
    sum(warming_s) / nullif(sum(hours), 0) * 24 / 60 AS warming_min_per_day,
    avg(plan_ms) AS plan_ms
FROM outcomes
GROUP BY strategy

-- name: strategies
-- About as even as the most even one: within one partition of it.
SELECT *, imbalance <= (SELECT min(imbalance) FROM summary) + 1 AS even
FROM summary
ORDER BY even DESC, round(moves_per_change, 2), round(imbalance, 2), plan_ms, strategy
