-- Protected tables refuse every write until `highwater unprotect` has dropped their triggers, so do
-- that first.
DROP TRIGGER IF EXISTS highwater_fence_update;
DROP TRIGGER IF EXISTS highwater_fence_insert;
