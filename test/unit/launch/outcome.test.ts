import { describe, expect, test } from 'vitest';
import type { NodeName } from '../../../src/base/ids.ts';
import { decideOutcome, type EndedStep } from '../../../src/launch/outcome.ts';
import type { StepResult } from '../../../src/rpc/message.ts';

const exited = (status: number): StepResult => ({
  result: status === 0 ? 'success' : 'exit-code',
  code: 'exited',
  status,
  stopped: false,
});
const killed = (status: number): StepResult => ({ result: 'signal', code: 'killed', status, stopped: false });
const step = (node: string, kind: EndedStep['kind'], outcome: StepResult): EndedStep => ({
  node: node as NodeName,
  task: kind === 'task' ? 0 : null,
  kind,
  outcome,
});
const decide = (ended: readonly EndedStep[], daemonNodes: readonly string[] = []) =>
  decideOutcome({ ended, daemonNodes: daemonNodes as NodeName[], stopped: undefined });

describe('plain tasks', () => {
  test('all with status 0 make a job with status 0', () => {
    expect(decide([step('n1', 'task', exited(0)), step('n2', 'task', exited(0))])).toMatchObject({
      exitStatus: 0,
    });
  });

  test('the first that failed gives its status and its node', () => {
    const ended = [
      step('n1', 'task', exited(0)),
      step('n3', 'task', exited(7)),
      step('n2', 'task', exited(9)),
    ];
    expect(decide(ended)).toEqual({ kind: 'job', exitStatus: 7, node: 'n3' });
  });

  test('one that needed too much memory is named beside the status, also when another failed first', () => {
    const starved: StepResult = { ...killed(9), result: 'oom-kill' };
    expect(decide([step('n1', 'task', starved)])).toEqual({
      ...{ kind: 'job', exitStatus: 137, node: 'n1', starved: 'n1' },
    });
    expect(decide([step('n1', 'head', exited(1)), step('n2', 'daemon', starved)], ['n2'])).toEqual({
      ...{ kind: 'job', exitStatus: 1, node: 'n1', starved: 'n2' },
    });
  });

  test('a launcher that failed is shown with the daemon that it lost, which it need not have named', () => {
    const lost = step('n3', 'daemon', killed(9));
    const ended = [step('n2', 'daemon', exited(1)), lost, step('n1', 'head', exited(255))];
    expect(decide(ended, ['n2', 'n3'])).toEqual({
      ...{ kind: 'job', exitStatus: 255, node: 'n1', lostDaemon: lost },
    });
  });

  test('a signal becomes 128 plus its number, also one that systemd calls success', () => {
    expect(decide([step('n1', 'task', killed(9))])).toMatchObject({ exitStatus: 137 });
    expect(decide([step('n1', 'task', { ...killed(15), result: 'success' })])).toMatchObject({
      exitStatus: 143,
    });
  });

  test('a unit that somebody stopped is no end of the job, whatever status it left', () => {
    expect(decide([step('n1', 'task', { ...exited(0), stopped: true })])).toMatchObject({
      code: 'sandbox-lost',
    });
  });

  test('a unit that left nothing is no success', () => {
    const lost: StepResult = { result: 'lost', code: 'none', status: 0, stopped: false };
    expect(decide([step('n1', 'task', lost)])).toMatchObject({ code: 'sandbox-lost' });
  });

  test('nothing ended means nothing succeeded', () => {
    expect(decide([])).toMatchObject({ kind: 'failure', code: 'launch-failed' });
  });
});

describe('mpirun that ends with 0 is believed only with its daemons', () => {
  const head = step('n1', 'head', exited(0));

  test('every daemon there and ended by itself, before or after the head', () => {
    const before = [step('n2', 'daemon', exited(0)), head, step('n3', 'daemon', exited(0))];
    expect(decide(before, ['n2', 'n3'])).toEqual({ kind: 'job', exitStatus: 0, node: undefined });
  });

  test('a daemon that was killed', () => {
    const outcome = decide([step('n2', 'daemon', killed(9)), head], ['n2']);
    expect(outcome).toMatchObject({ kind: 'failure', code: 'launch-failed' });
    expect(outcome.kind === 'failure' && outcome.message).toContain('n2 ended by signal 9');
  });

  test('a daemon that got SIGTERM, which systemd reports as success', () => {
    const term: StepResult = { result: 'success', code: 'killed', status: 15, stopped: false };
    expect(decide([step('n2', 'daemon', term), head], ['n2'])).toMatchObject({ kind: 'failure' });
  });

  test('a daemon whose unit was stopped', () => {
    const stopped: StepResult = { result: 'success', code: 'exited', status: 0, stopped: true };
    expect(decide([step('n2', 'daemon', stopped), head], ['n2'])).toMatchObject({ kind: 'failure' });
  });

  test('a daemon that never ran', () => {
    const outcome = decide([head, step('n2', 'daemon', exited(0))], ['n2', 'n3']);
    expect(outcome.kind === 'failure' && outcome.message).toContain('n3');
  });

  test('a head that failed gives its own status, not that of its daemons', () => {
    expect(decide([step('n2', 'daemon', killed(15)), step('n1', 'head', exited(42))], ['n2'])).toMatchObject({
      exitStatus: 42,
    });
  });
});

describe('a launch that a task ended for all', () => {
  const bad = step('n2', 'task', exited(7));
  const stopped = { ...killed(15), stopped: true };

  test('has the status of that task, whatever the others left', () => {
    const ended = [step('n1', 'task', stopped), bad, step('n3', 'task', exited(3))];
    const outcome = decideOutcome({ ended, daemonNodes: [], stopped: undefined, badStep: bad });
    expect(outcome).toEqual({ kind: 'job', exitStatus: 7, node: 'n2' });
  });
});

test('what the suite ended itself is never a status of the job', () => {
  const outcome = decideOutcome({
    ended: [step('n1', 'task', exited(0))],
    daemonNodes: [],
    stopped: { code: 'worker-unreachable', message: 'n2 is gone' },
  });
  expect(outcome).toEqual({ kind: 'failure', code: 'worker-unreachable', message: 'n2 is gone' });
});
