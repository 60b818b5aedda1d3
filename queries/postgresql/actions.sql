-- What operators do with messages: each statement is one batch of an action, in a transaction that begins with
-- `lock_rows`, or with `lock_next` of common.sql, which also chooses them. The plan was made earlier; only rows that are
-- still in the same state, and that nobody holds, are locked and acted on.
--
-- Rows are in a storage: the queue's table, a ring's slots, or its in_hand. `lock_rows` finds them by their keys, other
-- statements by ctid, of an adopted table by its oid and ctid: a locked row neither moves nor changes, and a ctid needs no
-- index (the oid, because partitions repeat ctids). Each batch counts its ledger: rows out of the source, rows into the
-- target.

-- define: state_held
-- null: a row that exists has not changed
CAST(NULL AS text)

-- define: held_attempts
-- as the list of messages has them
CAST(substring(CAST({attempts} AS text) FROM '^-?[0-9]{1,18}(?![0-9e])') AS bigint) -- when installed=no
CAST({attempts} AS bigint) -- when installed=yes

-- define: chosen_rows
-- the rows of :keys
{rows_by_id}

-- define: rows_by_id
FROM "{schema}"."{table}" AS m
WHERE {id_is_chosen}

-- define: id_is_chosen
m."{id}" = ANY(CAST(:keys AS "{key_schema}"."{key_type}"[])) -- when own_operators=no
m."{id}" OPERATOR("{key_operators}".=) ANY(CAST(:keys AS "{key_schema}"."{key_type}"[])) -- when own_operators=yes

-- define: next_chosen_rows
{rows_of_chosen}

-- define: rows_of_chosen
FROM "{schema}"."{table}" AS m
WHERE m.ctid = ANY(ARRAY(SELECT c.location FROM chosen AS c WHERE c.matches))

-- define: location
CAST(m.ctid AS text) -- when installed=yes
concat(m.tableoid, m.ctid) -- when installed=no

-- define: at_locations
m.ctid = ANY(CAST(:locations AS tid[])) -- when installed=yes
-- when installed=no
m.ctid = ANY(ARRAY(SELECT CAST(substring(p.location FROM '[(].*') AS tid) FROM unnest(CAST(:locations AS text[])) AS p (location)))
AND {location} = ANY(CAST(:locations AS text[]))
-- end

-- define: held_key
-- as the list of messages has it
{id} -- when role id
CAST(m.ctid AS text) -- when no role id

-- define: declared_path
-- the search path for what a table's owner, or its library, has written: triggers, functions, constraints
coalesce(nullif('{search_path}', ''), {owners_path})

-- define: owners_path
-- what a new session of the table's owner has in this database; a server's own setting is not visible to every login
(
    SELECT replace(
        coalesce(
            (
                SELECT substr(c.setting, length('search_path=') + 1)
                FROM pg_db_role_setting AS s
                CROSS JOIN LATERAL unnest(s.setconfig) AS c (setting)
                WHERE s.setrole IN (0, t.relowner) AND starts_with(c.setting, 'search_path=')
                AND s.setdatabase IN (0, (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()))
                ORDER BY s.setrole = 0, s.setdatabase = 0 LIMIT 1
            ),
            (SELECT v.boot_val FROM pg_settings AS v WHERE v.name = 'search_path')
        ),
        '"$user"',
        quote_ident(pg_get_userbyid(t.relowner))
    )
    FROM pg_class AS t WHERE t.oid = CAST('"{schema}"."{table}"' AS regclass)
)

-- define: under_declared_path
-- last in what writes into an adopted table: the names above were resolved before it is run, triggers and functions run after
-- That changes nothing until the first row is asked for, and then the path first.
-- when installed=no
FROM (SELECT set_config('search_path', {declared_path}, true) AS path LIMIT 1) AS declared
WHERE declared.path IS NOT NULL
-- end

-- define: remove_rows
-- removes the rows at :locations from the queue and returns them as `gone`
{deleted}

-- define: deleted
gone AS (
    DELETE FROM "{schema}"."{table}" AS m WHERE {at_locations}
    RETURNING 1 AS one
)

-- name: server_time
-- one row: the server's clock, from which an action's cut-off is taken
SELECT clock_timestamp() AS moment;

-- name: seek_rows
-- script: for the rest of the transaction, rows are found by their keys: a batch reads no table from end to end
SET LOCAL enable_seqscan = off;
SET LOCAL enable_bitmapscan = off;
-- Nor an index: thousands of rows at their locations seem to cost more than all rows in the order of a key.
SET LOCAL random_page_cost = 0;

-- name: lock_rows
-- a row for each chosen row that exists: its location and its state (lock=yes: locked now, without those that others hold)
SELECT
    {location} AS location,
    {held_key} AS id,
    {state_held} AS state,
    {held_attempts} AS attempts, -- when defined attempts
    CAST(NULL AS bigint) AS attempts, -- when not defined attempts
    -- when hashed=yes
    -- when defined error
    encode(sha256(convert_to(coalesce(CAST({error} AS text), ''), getdatabaseencoding())), 'hex') AS error_hash
    -- end
    CAST(NULL AS text) AS error_hash -- when not defined error
    -- end
    CAST(NULL AS text) AS error_hash -- when hashed=no
{chosen_rows}
-- when defined beside
-- Only one of the two rows is not a message; the doctor reports those.
AND EXISTS (SELECT FROM {beside} AS d WHERE d.id = m.id)
-- end
FOR UPDATE OF m SKIP LOCKED; -- when lock=yes

-- name: lock_chosen_now
-- a row for each row of `next_chosen` of common.sql that nobody else holds: its location; these are locked now
SELECT
    m.message_id AS number, -- when storage=slots
    m.ctid AS location
{next_chosen_rows}
-- when defined beside
AND EXISTS (SELECT FROM {beside} AS d WHERE d.id = m.id)
-- end
FOR UPDATE OF m SKIP LOCKED

-- name: unpack_chosen
-- a row for each of the chosen
SELECT
    w.key AS key,
    substring(w.mark FROM '^(.*) -?[0-9]*$') AS id,
    CAST(substring(w.mark FROM ' (-?[0-9]+)$') AS bigint) AS attempts,
    w.due AS due
FROM unnest(CAST(:keys AS text[]), CAST(:marks AS text[]), CAST(:due AS text[])) AS w (key, mark, due);

-- name: declared_path
-- one row: the search path under which the table's triggers run
SELECT {declared_path} AS path;

-- name: owner
-- one row: the table's owner, whether this login may act as the owner, and whether code of the owner's would gain rights
-- It acts by a temporary function that it gives to the owner.
SELECT
    CAST(o.rolname AS text) AS name,
    o.oid <> l.oid
    AND pg_has_role(
        o.oid, CASE WHEN CAST(current_setting('server_version_num') AS integer) >= 160000 THEN 'SET' ELSE 'MEMBER' END
    )
    AND (
        l.rolsuper
        OR has_database_privilege(l.oid, current_database(), 'TEMP') AND has_database_privilege(o.oid, current_database(), 'TEMP')
    ) AS may_be,
    l.rolsuper AND NOT o.rolsuper AS may_gain
FROM pg_class AS c
INNER JOIN pg_roles AS o ON c.relowner = o.oid
INNER JOIN pg_roles AS l ON l.rolname = current_user
WHERE c.oid = CAST('"{schema}"."{table}"' AS regclass);

-- name: reset_path
-- script: runs deferred triggers; from here on the transaction has our search path again
SET CONSTRAINTS ALL IMMEDIATE;
SET LOCAL search_path = pg_catalog, pg_temp;

-- name: archive_end
-- one row: the highest number in the archive
SELECT coalesce(max(a.archive_id), 0) AS archive_id FROM "{schema}"."{queue}_archive" AS a;

-- name: archived_after
-- a row for each of these that entered the archive after that number: its state
SELECT
    CAST(a.id AS text) AS id,
    a.state AS state
FROM "{schema}"."{queue}_archive" AS a
WHERE a.archive_id > CAST(:archive_id AS bigint) AND CAST(a.id AS text) = ANY(CAST(:ids AS text[]))
ORDER BY a.archive_id;

-- name: archive_rows
-- one row: how many messages left the queue, and how many entered its archive
WITH kept AS (
    INSERT INTO "{schema}"."{queue}_archive" (
        id, payload,
        title, -- when defined title
        pushed_at, -- when role pushed_at
        due_at, -- when role due_at
        claimed_at, -- when role claimed_at
        claimed_by, -- when role claimed_by
        done_at, -- when role done_at
        error, -- when role error
        state, attempts, reason, action_id
    )
    SELECT
        {own_id},
        {joined_payload},
        {title}, -- when defined title
        m."{pushed_at}", -- when role pushed_at
        m."{due_at}", -- when role due_at
        m."{claimed_at}", -- when role claimed_at
        m."{claimed_by}", -- when role claimed_by
        m."{done_at}", -- when role done_at
        m."{error}", -- when role error
        CAST(:state AS text),
        m."{attempts}", -- when role attempts
        0, -- when no role attempts
        CAST(:reason AS text),
        CAST(:action_id AS bigint)
    FROM "{schema}"."{table}" AS m
    {payload_join} -- when defined payload_join
    WHERE {at_locations}
    -- In the order of the pushes, which is the order in which they are pushed back.
    ORDER BY {push_order}
    RETURNING archive_id
),

{remove_rows}

SELECT
    (SELECT count(*) FROM gone) AS taken_out,
    (SELECT count(*) FROM kept) AS put_in;

-- name: delete_rows
-- one row: how many messages were deleted
WITH
{remove_rows}

SELECT
    (SELECT count(*) FROM gone) AS taken_out,
    (SELECT count(*) FROM gone) AS put_in
{under_declared_path}

-- define: table_parts
-- the table with all that inherits from it
parts AS (
    SELECT CAST(CAST('"{schema}"."{table}"' AS regclass) AS oid) AS oid
    UNION
    SELECT i.inhrelid
    FROM parts AS p INNER JOIN pg_inherits AS i ON p.oid = i.inhparent
)

-- name: cascades
-- a row for each foreign key by which the server changes further rows with a message that it deletes: how, and whether these are messages too
-- through: the table to whose rows they refer, where it is another one, whose rows it deletes with a message.
WITH RECURSIVE {table_parts},

acting AS (
    SELECT k.oid, k.conname, k.conrelid, k.confrelid, k.confdeltype, k.conparentid
    FROM pg_constraint AS k
    WHERE
        k.contype = 'f' AND k.confdeltype IN ('c', 'n', 'd')
        -- NOT ENFORCED, since PostgreSQL 18: it does nothing.
        AND coalesce(CAST(to_jsonb(k) ->> 'conenforced' AS boolean), true)
),

followed AS (
    SELECT k.oid, k.conrelid, k.confdeltype
    FROM parts AS p INNER JOIN acting AS k ON p.oid = k.confrelid
    UNION
    SELECT k.oid, k.conrelid, k.confdeltype
    FROM followed AS f INNER JOIN acting AS k ON f.conrelid = k.confrelid AND f.confdeltype = 'c'
)

SELECT
    CAST(k.conname AS text) AS name,
    CAST(CAST(k.conrelid AS regclass) AS text) AS of_table,
    CASE k.confdeltype WHEN 'c' THEN 'delete' WHEN 'n' THEN 'null' ELSE 'default' END AS effect,
    CASE
        WHEN k.confrelid NOT IN (SELECT p.oid FROM parts AS p) THEN CAST(CAST(k.confrelid AS regclass) AS text)
    END AS through,
    -- A key of a partitioned table changes rows of each of its partitions.
    k.conrelid IN (SELECT p.oid FROM parts AS p)
    OR k.conrelid IN (SELECT w.relid FROM pg_partition_ancestors(CAST('"{schema}"."{table}"' AS regclass)) AS w) AS of_messages
FROM followed AS f
INNER JOIN acting AS k ON f.oid = k.oid
WHERE NOT EXISTS (SELECT FROM followed AS whole WHERE k.conparentid = whole.oid) -- not the copies that partitions have
ORDER BY of_table, name;

-- name: delete_triggers
-- a row for each trigger that the server runs when messages are deleted: its name, and whether it runs instead
WITH RECURSIVE {table_parts}

SELECT DISTINCT
    CAST(t.tgname AS text) AS name,
    CAST(t.tgtype AS integer) & 64 > 0 AS instead
FROM parts AS p
INNER JOIN pg_trigger AS t ON p.oid = t.tgrelid
WHERE NOT t.tgisinternal AND t.tgenabled IN ('O', 'A') AND CAST(t.tgtype AS integer) & 8 > 0
ORDER BY name;

-- name: make_ready
-- one row: how many claimed or failed messages are ready again; their attempts stay counted
WITH freed AS (
    UPDATE "{schema}"."{table}" AS m
    SET
        -- when keeps_history=yes
        -- A released claim is kept in the history too, without an error.
        history = CASE WHEN m."{error}" IS NOT NULL THEN m.history ELSE jsonb_path_query_array(
            jsonb_build_array(jsonb_build_object(
                'at', clock_timestamp(), 'by', m."{claimed_by}", 'attempt', m."{attempts}", 'error', NULL
            )) || coalesce(m.history, '[]'),
            '$[0 to $last]', jsonb_build_object('last', CAST('{history}' AS integer) - 1)
        ) END,
        -- end
        "{done_at}" = NULL, -- when role done_at
        "{claimed_by}" = NULL, -- when role claimed_by
        "{pushed_at}" = clock_timestamp(), -- when to_back=yes
        "{error}" = NULL, -- when role error
        -- when role status
        "{claimed_at}" = NULL, -- when role claimed_at
        "{status}" = 0
        -- end
        "{claimed_at}" = NULL -- when no role status
    WHERE {at_locations}
    RETURNING 1 AS one
)

SELECT
    (SELECT count(*) FROM freed) AS taken_out,
    (SELECT count(*) FROM freed) AS put_in
{under_declared_path}

-- define: is_matching_archived
-- for row l of the archive: whether it matches
coalesce(
    l.archived_at <= CAST(:moment AS timestamptz)
    -- A popped message was delivered: it is selected by its own option only.
    AND l.reason = 'pop' -- when popped=yes
    AND l.reason <> 'pop' -- when popped=no
    AND l.state = :state -- when by_state=yes
    AND l.action_id = CAST(:action AS bigint) -- when by_action=yes
    AND strpos(lower(l.reason), lower(:reason)) > 0 -- when by_reason=yes
    -- when by_older=yes
    AND l.archived_at < CAST(:moment AS timestamptz) - make_interval(secs => CAST(:older AS double precision))
    -- end
    -- when by_newer=yes
    AND l.archived_at >= CAST(:moment AS timestamptz) - make_interval(secs => CAST(:newer AS double precision))
    -- end
    AND CAST(l.id AS text) = :id -- when by_id=yes
    {and_as_filtered}
    , false
)

-- define: next_archived
-- the next :read_limit rows of the archive, numbered
(
    SELECT
        row_number() OVER (ORDER BY a.archive_id) AS position,
        a.archive_id,
        a.id,
        a.state,
        a.pushed_at,
        a.due_at, -- when role due_at
        a.attempts,
        a.claimed_at,
        a.claimed_by,
        a.done_at,
        a.title, -- when defined title
        a.error,
        a.reason,
        a.action_id,
        a.archived_at,
        a.payload
    FROM "{schema}"."{queue}_archive" AS a
    WHERE a.archive_id > CAST(:after_id AS bigint)
    ORDER BY a.archive_id LIMIT :read_limit
)

-- define: archived_payload_size
CAST(octet_length(l.payload) AS bigint) AS payload_bytes, -- when payload=text|bytes
CAST(NULL AS bigint) AS payload_bytes, -- when payload=json

-- define: comes_back_as_it_was
-- for row a of the archive; a ring's popped messages were in in_hand, whatever their state there
true -- when rows=kept
(a.state IN ('claimed', 'error') OR a.attempts > 0) -- when rows=popped
false -- when rows=pushed

-- define: id_is_free
-- Looked up row by row: otherwise each batch makes a hash of the whole table.
(SELECT true FROM "{schema}"."{table}" AS m WHERE m.id = a.id LIMIT 1) IS NULL

-- define: is_reserved
-- for row a of the archive: whether a plan of the pipeline has it
-- when lakes=yes
EXISTS (
    SELECT FROM dbq.lake_row AS r
    INNER JOIN dbq.lake_plan AS p ON r.plan_id = p.plan_id
    WHERE
        p.schema_name = '{schema}' AND p.queue_name = '{queue}'
        AND r.archive_id = a.archive_id AND r.archived_at = a.archived_at
)
-- end
false -- when lakes=no

-- define: is_too_long
-- when limited=yes
octet_length(a.payload) > CAST('{max_bytes}' AS bigint) -- when payload=text|bytes
octet_length(CAST(a.payload AS text)) > CAST('{max_bytes}' AS bigint) -- when payload=json
-- end
false -- when limited=no

-- define: restored_as
-- for row a of the archive: what restore would do with it
CASE
    WHEN {is_reserved} THEN 'reserved' -- when lakes=yes
    WHEN {is_too_long} THEN 'too_long' -- when limited=yes
    WHEN NOT {comes_back_as_it_was} THEN 'pushed' -- when rows=popped|pushed
    WHEN {id_is_free} THEN 'own_id' -- when rows=kept|popped
    ELSE 'new_id'
END

-- name: matching_archived
-- of the next :read_limit rows of the archive: at most :n that match, and the last row whether it matches or not
SELECT
    l.position AS position,
    t.matches AS matches,
    l.archive_id AS archive_id,
    CAST(l.id AS text) AS id,
    l.state AS state,
    l.pushed_at AS pushed_at,
    CAST(EXTRACT(EPOCH FROM CAST(:moment AS timestamptz)) - EXTRACT(EPOCH FROM l.archived_at) AS double precision) AS age_seconds,
    l.due_at AS due_at, -- when role due_at
    CAST(NULL AS timestamptz) AS due_at, -- when no role due_at
    l.attempts AS attempts,
    l.claimed_at AS claimed_at,
    l.claimed_by AS claimed_by,
    l.done_at AS done_at,
    l.title AS title, -- when defined title
    CAST(NULL AS text) AS title, -- when not defined title
    {archived_payload_size}
    left(l.error, CAST(:error_length AS integer)) AS error
FROM {next_archived} AS l
CROSS JOIN LATERAL (SELECT {is_matching_archived} AS matches) AS t
WHERE t.matches OR l.position = :read_limit
ORDER BY l.archive_id LIMIT :n;

-- name: counted_archived
-- of the next :read_limit rows of the archive, by state and what restore would do with them: how many match, bytes and ages
-- A row for each; one with 0 where none matches. position, key: of the last row. bytes: NULL unless that of each is known.
WITH archived AS MATERIALIZED (
    SELECT
        l.position,
        l.archive_id,
        l.state,
        l.archived_at,
        {archived_payload_size}
        CASE WHEN {is_matching_archived} THEN (
            SELECT {restored_as} FROM (SELECT l.archive_id, l.archived_at, l.id, l.state, l.attempts, l.payload) AS a
        ) END AS label
    FROM {next_archived} AS l
)

SELECT
    e.position AS position,
    CAST(NULL AS text) AS key_time,
    CAST(e.archive_id AS text) AS key_id,
    c.state AS state,
    c.label AS label,
    0 AS side,
    coalesce(c.matching, 0) AS matching,
    CASE WHEN c.unknown_sizes = 0 THEN c.payload_bytes END AS payload_bytes,
    CAST(EXTRACT(EPOCH FROM CAST(:moment AS timestamptz)) - EXTRACT(EPOCH FROM c.oldest) AS double precision) AS oldest_seconds,
    CAST(EXTRACT(EPOCH FROM CAST(:moment AS timestamptz)) - EXTRACT(EPOCH FROM c.newest) AS double precision) AS newest_seconds
FROM (SELECT l.position, l.archive_id FROM archived AS l ORDER BY l.position DESC LIMIT 1) AS e
LEFT JOIN (
    SELECT
        l.state,
        l.label,
        count(*) AS matching,
        count(*) FILTER (WHERE l.payload_bytes IS NULL) AS unknown_sizes,
        CAST(coalesce(sum(l.payload_bytes), 0) AS bigint) AS payload_bytes,
        min(l.archived_at) AS oldest,
        max(l.archived_at) AS newest
    FROM archived AS l
    WHERE l.label IS NOT NULL
    GROUP BY l.state, l.label
) AS c ON true
ORDER BY c.state, c.label;

-- name: chosen_archived
-- one row, if there are any: of the next :read_limit rows of the archive, the first :n that match, as an array for `lock_archived`
-- position, key: of the last row considered, the :n-th of them or the last of all.
WITH archived AS MATERIALIZED (
    SELECT
        l.position,
        l.archive_id,
        {is_matching_archived} AS matches
    FROM {next_archived} AS l
),

first AS MATERIALIZED (
    SELECT
        l.position,
        l.archive_id
    FROM archived AS l
    WHERE l.matches
    ORDER BY l.position LIMIT :n
)

SELECT
    e.position AS position,
    CAST(NULL AS text) AS key_time,
    CAST(e.archive_id AS text) AS key_id,
    CAST(NULL AS text) AS label,
    0 AS side,
    c.matching AS matching,
    c.keys AS keys,
    CAST(NULL AS text) AS marks,
    CAST(NULL AS text) AS due
FROM (
    SELECT
        count(*) AS matching,
        max(r.position) AS last,
        CAST(array_agg(r.archive_id ORDER BY r.position) AS text) AS keys
    FROM first AS r
) AS c
CROSS JOIN LATERAL (
    SELECT
        l.position,
        l.archive_id
    FROM archived AS l
    WHERE c.matching < :n OR l.position = c.last
    ORDER BY l.position DESC LIMIT 1
) AS e;

-- name: last_purge
-- one row: of the :read_limit archived rows before a number: how many there are, the lowest, and the last purge among them
SELECT
    count(*) AS rows_read,
    min(l.archive_id) AS lowest,
    max(l.action_id) FILTER (
        WHERE (l.reason = 'purge' OR starts_with(l.reason, 'purge: ')) AND l.archived_at <= CAST(:moment AS timestamptz)
    ) AS action_id
FROM (
    SELECT
        a.archive_id,
        a.action_id,
        a.reason,
        a.archived_at
    FROM "{schema}"."{queue}_archive" AS a
    WHERE a.archive_id < coalesce(CAST(:before AS bigint), 9223372036854775807)
    ORDER BY a.archive_id DESC LIMIT CAST(:read_limit AS bigint)
) AS l;

-- name: lock_lake_plan
-- one row at most: how far the archive is on its way into a lake; no plan reserves rows until the transaction ends
SELECT p.state AS state FROM dbq.lake_plan AS p
WHERE p.schema_name = '{schema}' AND p.queue_name = '{queue}'
FOR SHARE;

-- name: labelled_archived
-- a row for each chosen row of the archive that exists: what restore would do with it
SELECT
    a.archive_id AS archive_id,
    {restored_as} AS label
FROM "{schema}"."{queue}_archive" AS a
WHERE a.archive_id = ANY(CAST(:keys AS bigint[]));

-- name: lock_archived
-- one row: how many of the chosen rows of the archive exist and nobody holds, and what restore does with them; locked now
-- kept_keys, pushed_keys: of those that come back as they were, and of those that are pushed again.
WITH held AS MATERIALIZED (
    SELECT
        a.archive_id,
        coalesce({is_reserved}, false) AS reserved,
        {is_too_long} AS too_long,
        {comes_back_as_it_was} AS kept
    FROM "{schema}"."{queue}_archive" AS a
    WHERE a.archive_id = ANY(CAST(:keys AS bigint[]))
    ORDER BY a.archive_id
    FOR UPDATE OF a SKIP LOCKED
)

SELECT
    count(*) AS locked,
    count(*) FILTER (WHERE h.reserved) AS reserved,
    count(*) FILTER (WHERE NOT h.reserved AND h.too_long) AS too_long,
    count(*) FILTER (WHERE NOT h.reserved AND NOT h.too_long AND h.kept) AS kept,
    CAST(coalesce(array_agg(h.archive_id) FILTER (WHERE NOT h.reserved AND NOT h.too_long AND h.kept), '{}') AS text) AS kept_keys,
    count(*) FILTER (WHERE NOT h.reserved AND NOT h.too_long AND NOT h.kept) AS pushed,
    CAST(coalesce(array_agg(h.archive_id) FILTER (WHERE NOT h.reserved AND NOT h.too_long AND NOT h.kept), '{}') AS text) AS pushed_keys
FROM held AS h;

-- name: restore_rows
-- one row: how many rows left the archive, and how many messages are back in the queue, in their former state
-- ids=kept: a row whose id is taken, by a message or in the same batch, stays; ids=new gives it a new one.
WITH wanted AS MATERIALIZED (
    SELECT
        a.archive_id,
        a.id, -- when ids=kept
        {new_id} AS id, -- when ids=new
        a.payload,
        a.title, -- when defined title
        a.pushed_at,
        a.state,
        a.attempts,
        -- A claim is restored as an error: its owner does not know, and nobody should process it unasked.
        CASE
            WHEN a.state = 'claimed' THEN coalesce(a.error, 'was claimed when it went into the archive')
            WHEN a.state = 'error' THEN coalesce(a.error, '')
            WHEN a.state = 'done' THEN a.error
        END AS error,
        CASE
            WHEN a.state = 'done' THEN a.claimed_at
            WHEN a.state IN ('claimed', 'error') THEN coalesce(a.claimed_at, a.archived_at)
        END AS claimed_at,
        CASE WHEN a.state IN ('claimed', 'error', 'done') THEN a.claimed_by END AS claimed_by,
        CASE WHEN a.state IN ('claimed', 'error', 'done') THEN coalesce(a.done_at, a.archived_at) END AS done_at
    FROM "{schema}"."{queue}_archive" AS a
    WHERE a.archive_id = ANY(CAST(:keys AS bigint[]))
    -- when ids=kept
    AND NOT EXISTS (
        SELECT FROM "{schema}"."{queue}_archive" AS b
        WHERE b.archive_id = ANY(CAST(:keys AS bigint[])) AND b.id = a.id AND b.archive_id < a.archive_id
    )
    -- when defined beside
    -- An id of which only one of the two rows is left is taken, too.
    AND NOT EXISTS (SELECT FROM {beside} AS d WHERE d.id = a.id)
    -- end
    -- end
),

-- when ids=new
{void_new_ids} -- when defined void_new_ids
-- end
kept AS (
    INSERT INTO "{schema}"."{table}" (
        id,
        "{payload}", -- when not defined beside
        title, -- when defined title
        "{status}", -- when role status
        "{pushed_at}", "{attempts}", "{error}", "{claimed_at}", "{claimed_by}", "{done_at}"
    )
    SELECT
        w.id,
        w.payload, -- when not defined beside
        coalesce(w.title, ''), -- when defined title
        CASE w.state WHEN 'ready' THEN 0 WHEN 'done' THEN 2 ELSE 4 END, -- when role status
        coalesce(w.pushed_at, clock_timestamp()),
        w.attempts,
        w.error,
        w.claimed_at,
        w.claimed_by,
        w.done_at
    FROM wanted AS w
    ON CONFLICT DO NOTHING
    RETURNING id
),

-- when defined beside
beside AS (
    INSERT INTO {beside} (id, text_data)
    SELECT
        w.id,
        w.payload
    FROM wanted AS w
    INNER JOIN kept AS k ON w.id = k.id
    RETURNING id
),

-- end
gone AS (
    DELETE FROM "{schema}"."{queue}_archive" AS a
    -- An array, so that they are looked up: a join reads the whole archive in each batch.
    WHERE a.archive_id = ANY(ARRAY(SELECT w.archive_id FROM wanted AS w INNER JOIN kept AS k ON w.id = k.id))
    RETURNING 1 AS one
)

SELECT
    (SELECT count(*) FROM gone) AS taken_out,
    (SELECT count(*) FROM beside) AS put_in; -- when defined beside
    (SELECT count(*) FROM kept) AS put_in; -- when not defined beside

-- name: restore_by_push
-- one row: how many rows left the archive, and how many the queue's push accepted; the others stay
WITH calls AS MATERIALIZED (
    SELECT
        a.due_at, -- when role due_at
        array_agg(a.archive_id ORDER BY a.archive_id) AS keys,
        array_agg(a.payload ORDER BY a.archive_id) AS payloads
    FROM "{schema}"."{queue}_archive" AS a
    WHERE a.archive_id = ANY(CAST(:keys AS bigint[]))
    GROUP BY a.due_at -- when role due_at
),

pushed AS MATERIALIZED (
    SELECT c.keys[p.position] AS archive_id
    FROM calls AS c
    -- when role due_at
    CROSS JOIN LATERAL "{schema}"."{queue}_push_many"(c.payloads, c.due_at) WITH ORDINALITY AS p (id, position)
    -- else
    CROSS JOIN LATERAL "{schema}"."{queue}_push_many"(c.payloads) WITH ORDINALITY AS p (id, position)
    -- end
    WHERE p.id IS NOT NULL
),

gone AS (
    DELETE FROM "{schema}"."{queue}_archive" AS a
    WHERE a.archive_id = ANY(ARRAY(SELECT p.archive_id FROM pushed AS p))
    RETURNING 1 AS one
)

SELECT
    (SELECT count(*) FROM gone) AS taken_out,
    (SELECT count(*) FROM pushed) AS put_in;

-- name: target_state
-- one row: how many messages are ready (counted to 10,001) and, for a ring, how many more fit, and how many after a relay
SELECT
    count(*) AS ready,
    CAST(NULL AS bigint) AS room,
    CAST(NULL AS bigint) AS voids
FROM (SELECT FROM "{schema}"."{table}" AS m WHERE {is_live} LIMIT 10001) AS bounded;

-- name: oversized
-- a row for each of the chosen: whether its payload is over the target queue's limit
-- An error if a payload is not of that queue's kind.
SELECT
    CAST(m."{id}" AS text) AS id,
    octet_length(c.payload) > CAST('{target_max_bytes}' AS bigint) AS too_long -- when target_payload=text|bytes
    octet_length(CAST(c.payload AS text)) > CAST('{target_max_bytes}' AS bigint) AS too_long -- when target_payload=json
FROM "{schema}"."{table}" AS m
{payload_join} -- when defined payload_join
CROSS JOIN LATERAL (SELECT CAST({joined_payload} AS "{target_payload_type}") AS payload) AS c
WHERE {id_is_chosen};

-- name: push_to
-- one row: how many messages left the queue, and how many the target queue's push accepted; the others stay
WITH chosen AS MATERIALIZED (
    SELECT
        p.location,
        p.position,
        {title}, -- when titles=yes
        CAST({joined_payload} AS "{target_payload_type}") AS payload
    FROM unnest(CAST(:locations AS text[])) WITH ORDINALITY AS p (location, position)
    INNER JOIN "{schema}"."{table}" AS m
        ON CAST(substring(p.location FROM '[(].*') AS tid) = m.ctid AND p.location = {location}
    {payload_join} -- when defined payload_join
),

calls AS MATERIALIZED (
    SELECT
        max(c.title) AS title, -- when titles=yes
        array_agg(c.location ORDER BY c.position) AS locations,
        array_agg(c.payload ORDER BY c.position) AS payloads
    FROM chosen AS c
    -- when titles=yes
    GROUP BY c.position
    ORDER BY c.position
    -- end
),

pushed AS MATERIALIZED (
    SELECT c.locations[p.position] AS location
    FROM calls AS c
    CROSS JOIN LATERAL "{target_schema}"."{target}_push_many"(c.payloads, title => c.title) -- when titles=yes
    CROSS JOIN LATERAL "{target_schema}"."{target}_push_many"(c.payloads) -- when titles=no
    WITH ORDINALITY AS p (id, position)
    WHERE p.id IS NOT NULL
),

-- when defined beside
data_gone AS (
    DELETE FROM {beside} AS d USING "{schema}"."{table}" AS m
    WHERE d.id = m.id AND m.ctid = ANY(ARRAY(SELECT CAST(substring(p.location FROM '[(].*') AS tid) FROM pushed AS p))
    AND {location} = ANY(ARRAY(SELECT p.location FROM pushed AS p))
),

-- end
gone AS (
    DELETE FROM "{schema}"."{table}" AS m
    WHERE m.ctid = ANY(ARRAY(SELECT CAST(substring(p.location FROM '[(].*') AS tid) FROM pushed AS p))
    AND {location} = ANY(ARRAY(SELECT p.location FROM pushed AS p))
    RETURNING 1 AS one
)

SELECT
    (SELECT count(*) FROM gone) AS taken_out,
    (SELECT count(*) FROM pushed) AS put_in
{under_declared_path}

-- name: live_sessions
-- a row for each of the sessions (as in claimed_by) that is still connected: user, program, address
SELECT
    w.session AS session,
    a.pid AS session_id,
    CAST(a.usename AS text) AS user_name,
    a.application_name AS application_name,
    CAST(a.client_addr AS text) AS client_address,
    a.state AS state
FROM (
    SELECT
        requested.session,
        CAST(substring(requested.session FROM '^pid=([0-9]{1,9}) start=') AS integer) AS pid
    FROM unnest(CAST(:sessions AS text[])) AS requested (session)
) AS w
INNER JOIN pg_stat_activity AS a ON w.pid = a.pid
ORDER BY a.pid;
