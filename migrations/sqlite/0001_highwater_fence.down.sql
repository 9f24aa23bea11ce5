-- Forgets every mark: afterwards a stale holder is admitted. Stop all fenced writers first.
DROP TABLE IF EXISTS highwater_fence;
