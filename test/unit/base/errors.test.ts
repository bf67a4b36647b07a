import { constants } from 'node:os';
import { expect, test } from 'vitest';
import { errnoOf } from '../../../src/base/errors.ts';

const withCode = (code: unknown): Error => Object.assign(new Error('a call failed'), { code });

test.each([
  ['EIO', 'EIO'],
  ['Unknown system error -37', 'ENOLCK'],
  [`Unknown system error -${constants.errno.EDQUOT}`, 'EDQUOT'],
  [`Unknown system error -${constants.errno.ESTALE}`, 'ESTALE'],
  ['Unknown system error -9999', undefined],
  ['ERR_INVALID_ARG_TYPE', undefined],
  [5, undefined],
])('an error with the code %s is %s, also where Node has no name for it', (code, name) => {
  expect(errnoOf(withCode(code))).toBe(name);
});
