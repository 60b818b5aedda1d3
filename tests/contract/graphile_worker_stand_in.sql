-- A stand-in for graphile-worker's schema, which is not installed here: the columns, the generated one, row
-- security and the two functions that its migrations 000011 to 000018 (0.16) publish, as far as they are looked
-- at or called. Written for these tests; it is not the library.
CREATE SCHEMA graphile_worker;

CREATE TABLE graphile_worker._private_tasks (
    id int PRIMARY KEY GENERATED ALWAYS AS IDENTITY, identifier text NOT NULL UNIQUE
);

CREATE TABLE graphile_worker._private_jobs (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    job_queue_id int,
    task_id int NOT NULL,
    payload json NOT NULL DEFAULT '{}',
    priority smallint NOT NULL DEFAULT 0,
    run_at timestamptz NOT NULL DEFAULT now(),
    attempts smallint NOT NULL DEFAULT 0,
    max_attempts smallint NOT NULL DEFAULT 25,
    last_error text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    key text UNIQUE,
    locked_at timestamptz,
    locked_by text,
    revision integer NOT NULL DEFAULT 0,
    flags jsonb,
    is_available boolean NOT NULL GENERATED ALWAYS AS (locked_at IS NULL AND attempts < max_attempts) STORED
);

ALTER TABLE graphile_worker._private_tasks ENABLE ROW LEVEL SECURITY;
ALTER TABLE graphile_worker._private_jobs ENABLE ROW LEVEL SECURITY;

CREATE FUNCTION graphile_worker.reschedule_jobs(
    job_ids bigint[], run_at timestamptz DEFAULT NULL, priority integer DEFAULT NULL,
    attempts integer DEFAULT NULL, max_attempts integer DEFAULT NULL
) RETURNS SETOF graphile_worker._private_jobs LANGUAGE sql AS $$
    UPDATE graphile_worker._private_jobs AS j
    SET
        run_at = coalesce(reschedule_jobs.run_at, j.run_at),
        attempts = coalesce(CAST(reschedule_jobs.attempts AS smallint), j.attempts),
        updated_at = now()
    WHERE j.id = ANY(job_ids) AND (j.locked_at IS NULL OR j.locked_at < now() - interval '4 hours')
    RETURNING j.*
$$;

INSERT INTO graphile_worker._private_tasks (identifier) VALUES ('send'), ('report');
INSERT INTO graphile_worker._private_jobs (task_id, run_at, attempts, max_attempts, last_error, locked_at, locked_by, created_at) VALUES
    (1, now() - interval '1 m', 0, 3, NULL, NULL, NULL, now() - interval '2 m'),
    (1, now() - interval '1 m', 0, 3, NULL, NULL, NULL, now()),
    (2, now() - interval '1 m', 0, 3, NULL, NULL, NULL, now()),
    (1, now() + interval '1 h', 1, 3, 'no host 4', NULL, NULL, now()),
    (1, now(), 1, 3, NULL, now(), 'worker-a', now()),
    (1, now(), 1, 3, NULL, now() - interval '1 h', 'worker-b', now() - interval '1 h'),
    (1, now(), 3, 3, 'no host 7', NULL, NULL, now()),
    (1, now(), 3, 3, 'no host 8', NULL, NULL, now()),
    (2, now(), 3, 3, 'no paper', NULL, NULL, now());
