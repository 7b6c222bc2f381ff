-- +goose Up

-- Authorizations that were asked for ahead of any order and are not proven yet:
-- how many an account has, and which.
CREATE INDEX acme_authzs_ahead ON acme_authzs (account_id, expires) WHERE status = 'pending' AND order_id = '';

-- The list of an account's orders leaves out invalid ones. An account whose
-- orders fail by the thousand must not make a page of it expensive.
DROP INDEX acme_orders_account;
CREATE INDEX acme_orders_account ON acme_orders (account_id, id) WHERE status <> 'invalid';
