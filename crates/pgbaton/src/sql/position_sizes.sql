-- How large the two leaves of the positions are, and which one is written to. Rows: one. Locks: none.
select p.leaf,
       pg_catalog.pg_relation_size(case p.leaf when 0 then 'pgbaton.position_0' else 'pgbaton.position_1' end::regclass) as written,
       pg_catalog.pg_relation_size(case p.leaf when 0 then 'pgbaton.position_1' else 'pgbaton.position_0' end::regclass) as other
from pgbaton.position_leaf p
