import { describe, expect, test } from 'vitest';
import { stripAcl } from '../../../src/normalise/acl.ts';

const NONE = 0xffff_ffff;
const acl = (...entries: [tag: number, permissions: number, id: number][]): Buffer => {
  const bytes = Buffer.alloc(4 + entries.length * 8);
  bytes.writeUInt32LE(2, 0);
  entries.forEach(([tag, permissions, id], index) => {
    bytes.writeUInt16LE(tag, 4 + index * 8);
    bytes.writeUInt16LE(permissions, 6 + index * 8);
    bytes.writeUInt32LE(id, 8 + index * 8);
  });
  return bytes;
};
const [OWNER, USER, GROUP_OWNER, GROUP, MASK, OTHER] = [1, 2, 4, 8, 16, 32];

describe('stripAcl', () => {
  test('leaves an ACL alone that names neither the user nor the group', () => {
    const bytes = acl(
      [OWNER, 6, NONE],
      [USER, 4, 1],
      [GROUP_OWNER, 4, NONE],
      [GROUP, 4, 2],
      [MASK, 4, NONE],
      [OTHER, 0, NONE],
    );
    expect(stripAcl(bytes, 2, 1)).toEqual({ kind: 'clean' });
  });

  test('takes out entries of both kinds and keeps the mask for those who stay', () => {
    const bytes = acl(
      [OWNER, 6, NONE],
      [USER, 7, 7],
      [USER, 4, 8],
      [GROUP_OWNER, 4, NONE],
      [GROUP, 7, 7],
      [MASK, 4, NONE],
      [OTHER, 0, NONE],
    );
    expect(stripAcl(bytes, 7, 7)).toEqual({
      kind: 'stripped',
      bytes: acl([OWNER, 6, NONE], [USER, 4, 8], [GROUP_OWNER, 4, NONE], [MASK, 4, NONE], [OTHER, 0, NONE]),
    });
  });

  test('without named entries the mask goes and the group gets no more than the mask had left it', () => {
    const bytes = acl(
      [OWNER, 6, NONE],
      [USER, 7, 7],
      [GROUP_OWNER, 7, NONE],
      [MASK, 5, NONE],
      [OTHER, 1, NONE],
    );
    expect(stripAcl(bytes, 7, 7)).toEqual({
      kind: 'stripped',
      bytes: acl([OWNER, 6, NONE], [GROUP_OWNER, 5, NONE], [OTHER, 1, NONE]),
    });
  });

  test('an owner that has the id is not an entry that names it', () => {
    expect(stripAcl(acl([OWNER, 6, 7], [GROUP_OWNER, 4, 7], [OTHER, 0, 7]), 7, 7).kind).toBe('clean');
  });

  test.each([Buffer.alloc(0), Buffer.from([1, 0, 0, 0]), acl([OWNER, 6, 0]).subarray(0, 9)])(
    'does not guess at what is no ACL (%#)',
    (bytes) => {
      expect(stripAcl(bytes, 7, 7).kind).toBe('unreadable');
    },
  );
});
