"""The suite. Needs the extra [test]; a server of its own, or DBQ_TEST_POSTGRESQL_URL."""
