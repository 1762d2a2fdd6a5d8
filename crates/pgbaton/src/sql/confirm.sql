-- Confirms that this server came from pg_upgrade. Only the schema's owner may. Rows: one, null if it is done, else why not.
select pgbaton.confirm() as why
