import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  type Attempt,
  type InstanceName,
  type JobId,
  type LeaseNumber,
  parseJobId,
} from '../../../src/base/ids.ts';
import {
  escapeJobId,
  sandboxNames,
  UNIT_NAME_CHARS_MAX,
  userName,
  workspaceName,
} from '../../../src/sandbox/names.ts';

const key = (job: string, lease = 7, attempt = 0, instance = 'main') => ({
  instance: instance as InstanceName,
  job: job as JobId,
  attempt: attempt as Attempt,
  lease: lease as LeaseNumber,
});

const job = fc
  .string({
    unit: fc.integer({ min: 0x21, max: 0x7e }).map((code) => String.fromCharCode(code)),
    minLength: 1,
    maxLength: 128,
  })
  .filter((text) => parseJobId(text) !== undefined)
  .map((text) => text as JobId);

describe('unit names', () => {
  test('carry instance, lease, job and attempt', () => {
    const names = sandboxNames(key('42', 7, 1));
    expect(names.base).toBe('xce-main-7.42.1');
    expect(names.slice).toBe('xce-main-7.42.1.slice');
    expect(names.anchor).toBe('xce-main-7.42.1.anchor.service');
    expect(names.step('head')).toBe('xce-main-7.42.1.step.head.service');
    expect(names.deadlines[0].timer).toBe('xce-main-7.42.1.deadline.timer');
    expect(names.cgroup).toBe('xce.slice/xce-main.slice/xce-main-7.42.1.slice');
  });

  test('escape what systemd would read as structure', () => {
    expect(escapeJobId('123[4].server' as JobId)).toBe('123_5B4_5D.server');
    expect(escapeJobId('a-b' as JobId)).toBe('a_2Db');
    expect(escapeJobId('ƒabc' as JobId)).toBe('_C6_92abc');
    expect(escapeJobId('../x/%n@$' as JobId)).toBe('.._2Fx_2F_25n_40_24');
  });

  test('keep job ids apart that differ in one character only', () => {
    const ids = [
      '100_7',
      '107',
      '100+1',
      '100[7]',
      '100-7',
      '100.7',
      '100_5F7',
      '18014398509481984',
      '18014398509481985',
    ];
    expect(new Set(ids.map((id) => escapeJobId(id as JobId))).size).toBe(ids.length);
  });

  test('keep long job ids apart and short', () => {
    const a = escapeJobId(`${'x'.repeat(100)}a` as JobId);
    const b = escapeJobId(`${'x'.repeat(100)}b` as JobId);
    expect(a).not.toBe(b);
    expect(a).toMatch(/^x{32}_h[0-9a-f]{16}$/);
    expect(escapeJobId('x'.repeat(64) as JobId)).toBe('x'.repeat(64));
  });

  test('have no job and attempt that read as another job', () => {
    expect(sandboxNames(key('42.1', 7, 0)).base).not.toBe(sandboxNames(key('42', 7, 1)).base);
    expect(workspaceName(key('..', 1, 3))).toBe('...3');
  });

  test('of any two different jobs differ, and stay within the alphabet and under 200 characters', () => {
    const instance = 'abcdefghijklmnop';
    fc.assert(
      fc.property(job, job, (a, b) => {
        const names = sandboxNames(key(a, Number.MAX_SAFE_INTEGER, 999_999, instance));
        for (const name of [
          names.slice,
          names.anchor,
          names.step('0123456789abcdef'),
          names.deadlines[1].service,
        ]) {
          expect(name).toMatch(/^xce-[a-z0-9_]+-[0-9]+\.[A-Za-z0-9_.]+$/);
          expect(name.length).toBeLessThanOrEqual(UNIT_NAME_CHARS_MAX);
        }
        expect(names.base === sandboxNames(key(b, Number.MAX_SAFE_INTEGER, 999_999, instance)).base).toBe(
          a === b,
        );
      }),
    );
  });

  test('refuse a step id that is not one', () => {
    expect(() => sandboxNames(key('1')).step('a.b')).toThrow(/step id/);
    expect(() => sandboxNames(key('1')).step('')).toThrow(/step id/);
  });
});

describe('the user name', () => {
  test('holds instance and lease number, no job text', () => {
    expect(userName(key('42'))).toBe('xce-main-7');
  });

  test('stays within 31 characters without two leases sharing one', () => {
    const a = userName(key('1', Number.MAX_SAFE_INTEGER, 0, 'abcdefghijklmnop'));
    const b = userName(key('1', Number.MAX_SAFE_INTEGER - 1, 0, 'abcdefghijklmnop'));
    expect(a.length).toBeLessThanOrEqual(31);
    expect(a).not.toBe(b);
  });
});
