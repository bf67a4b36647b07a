import { describe, expect, test } from 'vitest';
import { commandFor, findLease, type LeaseRef } from '../../../src/lease/reference.ts';
import { unwrap } from '../../../src/lease/refusal.ts';
import { attempt, codeOf, job, leaseNumber, request, Scene } from './scene.ts';

const number = (scene: Scene, ref: LeaseRef) => unwrap(findLease(scene.state, ref)).number;

describe('a job without an attempt', () => {
  test('means its latest attempt that still has a lease', () => {
    const scene = new Scene();
    scene.allocate(request());
    scene.allocate(request({ attempt: attempt(1) }));
    expect(number(scene, { job: job('42') })).toBe(2);
    expect(number(scene, { job: job('42'), attempt: attempt(0) })).toBe(1);
    scene.release(scene.lease(2));
    expect(number(scene, { job: job('42') })).toBe(1);
  });

  test('that was never seen is missing, one that was freed has ended', () => {
    const scene = new Scene();
    scene.release(scene.allocate());
    expect(codeOf(() => number(scene, { job: job('42') }))).toBe('lease-ended');
    expect(codeOf(() => number(scene, { job: job('42'), attempt: attempt(1) }))).toBe('lease-missing');
    expect(codeOf(() => number(scene, { job: job('43') }))).toBe('lease-missing');
    expect(codeOf(() => number(scene, { lease: leaseNumber(1) }))).toBe('lease-ended');
    expect(codeOf(() => number(scene, { lease: leaseNumber(2) }))).toBe('lease-missing');
  });
});

// Without the attempt a command means the latest one, which after a requeue is another that runs.
describe('a command that an operator can paste', () => {
  test.each([
    ['42', 0, 'xce-sandbox lease release --job 42 --attempt 0'],
    ['42', 3, 'xce-sandbox lease release --job 42 --attempt 3'],
    ['1234[7].pbs01', 0, "xce-sandbox lease release --job '1234[7].pbs01' --attempt 0"],
    ["a'b;reboot", 0, "xce-sandbox lease release --job 'a'\\''b;reboot' --attempt 0"],
  ])('job %s, attempt %i', (id, count, command) => {
    expect(commandFor('lease release', { job: job(id), attempt: attempt(count) })).toBe(command);
  });
});
