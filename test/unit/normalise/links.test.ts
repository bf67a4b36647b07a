import { expect, test } from 'vitest';
import { LinkTable } from '../../../src/normalise/links.ts';

test('an inode is missing until as many names were met as it has', () => {
  const table = new LinkTable();
  expect(table.has(7n)).toBe(false);
  expect(table.meet(7n, 3)).toEqual({ first: true, missing: 2 });
  expect(table.has(7n)).toBe(true);
  expect(table.countMissing()).toBe(1);
  expect(table.meet(7n, 3)).toEqual({ first: false, missing: 1 });
  expect(table.meet(7n, 3)).toEqual({ first: false, missing: 0 });
  expect(table.countMissing()).toBe(0);
  // A link made while the walk goes on.
  expect(table.meet(7n, 4)).toEqual({ first: false, missing: 0 });
});

test('keeps many inodes apart, also those whose numbers differ only in high bits', () => {
  const table = new LinkTable();
  const inodes = Array.from({ length: 5000 }, (_, index) => (BigInt(index) << 40n) + 2n ** 63n);
  for (const inode of inodes) expect(table.meet(inode, 2).first).toBe(true);
  expect(table.countMissing()).toBe(5000);
  for (const inode of inodes) expect(table.meet(inode, 2)).toEqual({ first: false, missing: 0 });
  expect(table.countMissing()).toBe(0);
  expect(table.untracked).toBe(0);
});
