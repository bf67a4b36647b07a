import { describe, expect, test } from 'vitest';
import type { NodeName } from '../../../src/base/ids.ts';
import { fillOutputPattern, parseOutputPattern } from '../../../src/launch/output-name.ts';

const fill = (
  text: string,
  changes: { readonly job?: string; readonly task?: number | null } = {},
): string => {
  const { pattern = [], problem } = parseOutputPattern(text);
  expect(problem).toBe(undefined);
  return fillOutputPattern(pattern, { job: '42', attempt: 1, node: 'n1' as NodeName, task: 5, ...changes });
};

describe('the name of an output file', () => {
  test.each<[pattern: string, name: string]>([
    ['job.out', 'job.out'],
    ['job-%j-%n.out', 'job-42-n1.out'],
    ['/var/log/%j.%a/%t', '/var/log/42.1/5'],
    ['%%j%%%n', '%j%n1'],
    ['%n%n', 'n1n1'],
  ])('%s', (pattern, name) => {
    expect(fill(pattern)).toBe(name);
  });

  test('has 0 for the task of an MPI launch, which has one output', () => {
    expect(fill('%t', { task: null })).toBe('0');
  });

  test.each<[pattern: string, problem: RegExp]>([
    ['', /empty/],
    ['a%', /"%" at character 2 is none of/],
    ['%j-%x', /"%x" at character 4 is none of/],
    ['%3t', /"%3" at character 1/],
    ['a\0', /NUL/],
    ['dir/', /directory/],
    ['x'.repeat(4096), /over 4095 bytes/],
  ])('%j is refused', (pattern, problem) => {
    expect(parseOutputPattern(pattern).problem).toMatch(problem);
  });

  test('is not led elsewhere by a job id', () => {
    expect(() => fill('%j.out', { job: '../../etc/x' })).toThrow(/cannot be part of the name/);
    expect(() => fill('%j/out', { job: '..' })).toThrow(/cannot be part of the name/);
    expect(fill('%n.out', { job: '../../etc/x' })).toBe('n1.out');
  });
});
