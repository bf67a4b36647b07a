import { describe, expect, test } from 'vitest';
import { describeEnd, LOST, type ServiceEnd, toStepResult } from '../../../src/sandbox/step-result.ts';

const end = (more: Partial<ServiceEnd>): ServiceEnd => ({
  invocationId: '74be0e5129b649729637a77d3dd907a1',
  result: 'success',
  code: 1,
  status: 0,
  mainExitUs: 1000n,
  activeExitUs: 1000n,
  ...more,
});

describe('the result of a step', () => {
  test('is exit status, signal or core dump as systemd saw it', () => {
    expect(toStepResult(end({}))).toEqual({ result: 'success', code: 'exited', status: 0, stopped: false });
    expect(toStepResult(end({ result: 'exit-code', status: 255, activeExitUs: 1001n }))).toEqual({
      result: 'exit-code',
      code: 'exited',
      status: 255,
      stopped: false,
    });
    expect(toStepResult(end({ result: 'signal', code: 2, status: 11 })).code).toBe('killed');
    expect(toStepResult(end({ result: 'core-dump', code: 3, status: 6 })).code).toBe('dumped');
  });

  test('is stopped when the unit left its active state before the process ended', () => {
    expect(toStepResult(end({ activeExitUs: 999n }))).toEqual({
      result: 'success',
      code: 'exited',
      status: 0,
      stopped: true,
    });
    expect(toStepResult(end({ activeExitUs: 0n })).stopped).toBe(false);
    // The kernel took a process of it, and then systemd took the rest.
    const starved = end({ result: 'oom-kill', code: 2, status: 9, activeExitUs: 999n });
    expect(toStepResult(starved)).toMatchObject({ result: 'oom-kill', stopped: false });
  });

  test('keeps a failure without a process and is lost for a success without one', () => {
    expect(toStepResult(end({ result: 'resources', code: 0, mainExitUs: 0n }))).toEqual({
      result: 'resources',
      code: 'none',
      status: 0,
      stopped: false,
    });
    // What systemd makes up for a unit that it has forgotten.
    expect(toStepResult(end({ code: 0, mainExitUs: 0n, activeExitUs: 0n }))).toEqual(LOST);
  });

  test('is lost for facts that are none', () => {
    for (const more of [
      { code: -1 },
      { code: 4 },
      { status: -1 },
      { status: 256 },
      { result: '' },
      { result: 'Success' },
      { mainExitUs: 0n },
      { mainExitUs: -1n },
    ]) {
      expect(toStepResult(end(more))).toEqual(LOST);
    }
  });

  test('names the failures of systemd before the command', () => {
    expect(describeEnd(end({ result: 'exit-code', status: 226 }))).toBe('exit status 226 (NAMESPACE)');
    expect(describeEnd(end({ result: 'signal', code: 2, status: 9 }))).toBe('killed by signal 9');
    expect(describeEnd(end({ result: 'resources', code: 0 }))).toBe('resources');
  });
});
