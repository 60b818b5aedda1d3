-- What the bench, and the console of an adopted queue, call of pgmq, with the names, arguments and results that its
-- documentation gives. It is not the library.
CREATE TABLE pgmq.meta (queue_name varchar PRIMARY KEY);

CREATE TYPE pgmq.message_record AS (
    msg_id bigint, read_ct integer, enqueued_at timestamptz, vt timestamptz, message jsonb, headers jsonb
);

CREATE FUNCTION pgmq.create(queue_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format(
        'CREATE TABLE pgmq.%I (msg_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, read_ct integer DEFAULT 0,'
        ' enqueued_at timestamptz DEFAULT now(), vt timestamptz DEFAULT now(), message jsonb, headers jsonb)',
        'q_' || queue_name
    );
    INSERT INTO pgmq.meta VALUES (queue_name);
END $$;

CREATE FUNCTION pgmq.drop_queue(queue_name text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('DROP TABLE pgmq.%I', 'q_' || queue_name);
    DELETE FROM pgmq.meta AS m WHERE m.queue_name = drop_queue.queue_name;
    RETURN true;
END $$;

CREATE FUNCTION pgmq.send_batch(queue_name text, msgs jsonb[]) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY EXECUTE format(
        'INSERT INTO pgmq.%I (message) SELECT unnest($1) RETURNING msg_id', 'q_' || queue_name
    ) USING msgs;
END $$;

CREATE FUNCTION pgmq.send(queue_name text, msg jsonb) RETURNS SETOF bigint LANGUAGE sql AS $$
    SELECT pgmq.send_batch(queue_name, ARRAY[msg])
$$;

CREATE FUNCTION pgmq.read(queue_name text, vt integer, qty integer) RETURNS SETOF pgmq.message_record
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY EXECUTE format(
        'WITH taken AS MATERIALIZED (SELECT q.msg_id FROM pgmq.%1$I AS q WHERE q.vt <= clock_timestamp()'
        ' ORDER BY q.msg_id LIMIT $1 FOR UPDATE SKIP LOCKED)'
        ' UPDATE pgmq.%1$I AS m SET vt = clock_timestamp() + make_interval(secs => $2), read_ct = m.read_ct + 1'
        ' FROM taken WHERE m.msg_id = taken.msg_id'
        ' RETURNING m.msg_id, m.read_ct, m.enqueued_at, m.vt, m.message, m.headers',
        'q_' || queue_name
    ) USING qty, vt;
END $$;

CREATE FUNCTION pgmq.pop(queue_name text) RETURNS SETOF pgmq.message_record LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY EXECUTE format(
        'WITH taken AS MATERIALIZED (SELECT q.msg_id FROM pgmq.%1$I AS q WHERE q.vt <= clock_timestamp()'
        ' ORDER BY q.msg_id LIMIT 1 FOR UPDATE SKIP LOCKED)'
        ' DELETE FROM pgmq.%1$I AS m USING taken WHERE m.msg_id = taken.msg_id'
        ' RETURNING m.msg_id, m.read_ct, m.enqueued_at, m.vt, m.message, m.headers',
        'q_' || queue_name
    );
END $$;

CREATE FUNCTION pgmq.delete(queue_name text, msg_ids bigint[]) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY EXECUTE format(
        'DELETE FROM pgmq.%I WHERE msg_id = ANY($1) RETURNING msg_id', 'q_' || queue_name
    ) USING msg_ids;
END $$;

CREATE FUNCTION pgmq.set_vt(queue_name text, msg_id bigint, vt integer) RETURNS SETOF pgmq.message_record
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY EXECUTE format(
        'UPDATE pgmq.%I AS m SET vt = clock_timestamp() + make_interval(secs => $1) WHERE m.msg_id = $2'
        ' RETURNING m.msg_id, m.read_ct, m.enqueued_at, m.vt, m.message, m.headers',
        'q_' || queue_name
    ) USING vt, msg_id;
END $$;
