-- Logins with providers outside: whose account there is whose here, and logins that are under way.

CREATE TABLE identities (
    issuer TEXT NOT NULL,
    subject TEXT NOT NULL,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (issuer, subject)
);
CREATE INDEX ix_identities_user ON identities (user_id);

CREATE TABLE logins (
    state_hash TEXT PRIMARY KEY,
    browser_hash TEXT NOT NULL,
    provider TEXT NOT NULL,
    redirect_url TEXT NOT NULL,
    secrets TEXT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE INDEX ix_logins_expires ON logins (expires_at);
