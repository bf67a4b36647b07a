import { describe, expect, test } from 'vitest';
import { decide, type Terms } from '../../../src/normalise/verdict.ts';
import { INODE_KINDS, type InodeFacts } from '../../../src/os/pinned.ts';

const terms: Terms = { uid: 70, gid: 70, to: { uid: 9, gid: 10 }, pool: { first: 70, last: 79 } };
const facts = (changed: Partial<InodeFacts> = {}): InodeFacts => ({
  kind: 'file',
  mode: 0o644,
  uid: 70,
  gid: 70,
  links: 1,
  inode: 1n,
  device: 1,
  mountId: 1,
  represents: 0,
  immutable: false,
  appendOnly: false,
  ...changed,
});

describe('decide', () => {
  test('an inode of the uid goes to the submitter, its group only if it is the leased one', () => {
    expect(decide(facts(), terms)).toEqual({
      kind: 'change',
      what: 'owner',
      uid: 9,
      gid: 10,
      mode: undefined,
    });
    expect(decide(facts({ gid: 5 }), terms)).toMatchObject({ what: 'owner', uid: 9, gid: 5 });
  });

  test.each(INODE_KINDS)('an inode of nobody concerned is kept, whatever it is: %s', (kind) => {
    for (const uid of [0, 9, 69, 80, 4_294_967_294]) {
      expect(decide(facts({ kind, uid, gid: 1, mode: 0o6777, represents: 259 }), terms)).toEqual({
        kind: 'keep',
        lease: false,
      });
    }
    expect(decide(facts({ kind, uid: 71, gid: 71 }), terms)).toEqual({ kind: 'keep', lease: true });
  });

  test('setuid and setgid go first, sticky stays, a link has no mode', () => {
    expect(decide(facts({ mode: 0o7755 }), terms)).toMatchObject({ mode: 0o1755 });
    expect(decide(facts({ mode: 0o2755, kind: 'directory' }), terms)).toMatchObject({ mode: 0o755 });
    expect(decide(facts({ mode: 0o6777, kind: 'symlink' }), terms)).toMatchObject({ mode: undefined });
  });

  test('devices, and flagged inodes, are reported; a whiteout is no device', () => {
    for (const kind of ['character-device', 'block-device'] as const) {
      expect(decide(facts({ kind, represents: 259 }), terms)).toEqual({ kind: 'report', reason: 'device' });
    }
    expect(decide(facts({ kind: 'block-device' }), terms).kind).toBe('report');
    expect(decide(facts({ kind: 'character-device' }), terms).kind).toBe('change');
    expect(decide(facts({ immutable: true }), terms)).toMatchObject({ reason: 'immutable' });
    expect(decide(facts({ appendOnly: true }), terms)).toMatchObject({ reason: 'append-only' });
    expect(decide(facts({ immutable: true, uid: 3, gid: 3 }), terms).kind).toBe('keep');
  });

  test('the leased group on inodes of others: the submitter gets a group, the rest is reported', () => {
    expect(decide(facts({ uid: 9 }), terms)).toMatchObject({
      kind: 'change',
      what: 'group',
      uid: 9,
      gid: 10,
    });
    for (const uid of [0, 3, 71]) {
      expect(decide(facts({ uid }), terms)).toEqual({ kind: 'report', reason: 'foreign-group' });
    }
  });

  test('never gives anything to anybody but the submitter', () => {
    for (const kind of INODE_KINDS) {
      for (const uid of [0, 9, 70, 71]) {
        for (const gid of [0, 10, 70, 71]) {
          for (const mode of [0, 0o7777]) {
            const verdict = decide(facts({ kind, uid, gid, mode, represents: 1 }), terms);
            if (verdict.kind !== 'change') continue;
            expect(verdict.uid).toBe(9);
            expect(uid === 70 || (uid === 9 && gid === 70)).toBe(true);
            expect(verdict.gid).toBe(gid === 70 ? 10 : gid);
          }
        }
      }
    }
  });
});
