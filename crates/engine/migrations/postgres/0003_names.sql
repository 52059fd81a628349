-- The last deleted sandbox that had a name: a name that nothing has is answered without looking through all of them.
CREATE INDEX sandboxes_named ON sandboxes (name, id) WHERE state = 'deleted';
