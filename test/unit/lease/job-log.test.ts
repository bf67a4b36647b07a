import { expect, test } from 'vitest';
import type { Attempt, Epoch, JobId, LeaseNumber, NodeName, Uid } from '../../../src/base/ids.ts';
import type { LeaseEvent } from '../../../src/lease/event.ts';
import { JobLog } from '../../../src/lease/job-log.ts';
import { jobView } from '../../../src/lease/job-view.ts';
import { leaseMachine } from '../../../src/lease/machine.ts';
import { EpochLog } from '../../../src/wal/epoch-log.ts';
import type { Machine, View } from '../../../src/wal/machine.ts';
import { World } from '../../crash/world.ts';

test('what went on behind a commit of one job, and nobody was told, is told at the end', async () => {
  const world = new World();
  world.tailBytesMin = 1;
  world.disk.freeBytes = 1;
  const open = <State>(
    machine: Machine<State, LeaseEvent> | View<State, LeaseEvent>,
  ): EpochLog<State, LeaseEvent> => new EpochLog(world.portsOf('a'), world.optionsOf('a'), machine);
  const whole = open(leaseMachine);
  await whole.init();
  await whole.close();
  const log = new JobLog({
    openView: () => open(jobView({ lease: 1 as LeaseNumber })),
    openWhole: () => open(leaseMachine),
  });
  const issued = { wallMs: 1, monotonicMs: 1, bootId: 'b' };
  const nodes = Array.from({ length: 200 }, (_, n) => `node${n}` as NodeName);
  const { notices } = await log.commit((_, { epoch }) => ({
    events: [
      {
        kind: 'allocate',
        lease: 1 as LeaseNumber,
        uid: 70_000 as Uid,
        job: '1' as JobId,
        attempt: 0 as Attempt,
        schedulerStartS: null,
        submitter: { uid: 1001, gid: 1001 },
        nodes,
        roots: [],
        workspace: null,
        term: { ttlMs: 60_000, issued },
        epoch: epoch as Epoch,
      },
    ],
    result: undefined,
  }));
  expect(notices).toEqual([]);
  expect(await log.close()).toMatchObject([{ kind: 'not-compacted', path: world.epochPath(1) }]);
  expect(await log.close()).toEqual([]);
});
