import { describe, expect, test } from 'vitest';
import { Turns } from '../../../src/worker/turns.ts';
import { codeOf, Gate, settle } from './fakes.ts';

describe('turns', () => {
  const setUp = () => {
    const turns = new Turns();
    const trace: string[] = [];
    const gate = new Gate();
    gate.close();
    const act = (name: string) => async () => {
      trace.push(`+${name}`);
      await gate.pass();
      trace.push(`-${name}`);
    };
    return { turns, trace, gate, act };
  };

  test('those that share act together, one that is alone waits for all of them', async () => {
    const { turns, trace, gate, act } = setUp();
    const all = [turns.shared(1, act('a')), turns.shared(1, act('b')), turns.alone(1, act('c'))];
    await settle();
    expect(trace).toEqual(['+a', '+b']);
    gate.open();
    await Promise.all(all);
    expect(trace.slice(-2)).toEqual(['+c', '-c']);
  });

  test('a start that asks after a drain waits for it, even while other starts are in flight', async () => {
    const { turns, trace, gate, act } = setUp();
    const all = [
      turns.shared(1, act('start1')),
      turns.alone(1, act('drain')),
      turns.shared(1, act('start2')),
      turns.shared(1, act('start3')),
    ];
    await settle();
    expect(trace).toEqual(['+start1']);
    gate.open();
    await Promise.all(all);
    expect(trace).toEqual([
      '+start1',
      '-start1',
      '+drain',
      '-drain',
      '+start2',
      '+start3',
      '-start2',
      '-start3',
    ]);
  });

  test('leases do not wait for each other', async () => {
    const { turns, trace, gate, act } = setUp();
    const all = [turns.alone(1, act('one')), turns.alone(2, act('two'))];
    await settle();
    expect(trace).toEqual(['+one', '+two']);
    gate.open();
    await Promise.all(all);
  });

  test('a failed act gives its turn on', async () => {
    const { turns } = setUp();
    const failed = turns.alone(1, () => Promise.reject(new Error('no')));
    const next = turns.alone(1, async () => 'yes');
    await expect(failed).rejects.toThrow('no');
    expect(await next).toBe('yes');
  });

  test('more than 512 that wait for one lease are refused as worker-busy', async () => {
    const { turns, gate, act } = setUp();
    const all = Array.from({ length: 513 }, () => turns.alone(1, act('x')));
    expect(await codeOf(turns.alone(1, act('y')))).toBe('worker-busy');
    gate.open();
    await Promise.all(all);
  });
});
