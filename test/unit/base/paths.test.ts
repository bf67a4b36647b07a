import { describe, expect, test } from 'vitest';
import { isNormalPath, isWithin } from '../../../src/base/paths.ts';

describe('a path has one form', () => {
  test.each(['/a', '/a/b', '/...', '/a/..b', '/ '])('%j has it', (path) => {
    expect(isNormalPath(path)).toBe(true);
  });

  test.each(['', '/', 'a', 'a/b', './a', '/a/', '//a', '/a//b', '/.', '/a/..', '/a/./b'])(
    '%j has another',
    (path) => {
      expect(isNormalPath(path)).toBe(false);
    },
  );
});

test('a name that only begins alike is not within', () => {
  expect(isWithin('/scratch', '/scratch')).toBe(true);
  expect(isWithin('/scratch/a', '/scratch')).toBe(true);
  expect(isWithin('/scratch2', '/scratch')).toBe(false);
  expect(isWithin('/', '/scratch')).toBe(false);
  expect(isWithin('scratch/a', '/scratch')).toBe(false);
});
