/**
 * A controller as a process of its own that allocates leases one after the other, as `xce-sandbox lease allocate` does
 * but without a new process for each. Arguments: configuration, first part of the jobs' names, count. Writes a line for
 * each lease that was acknowledged (job, number, uid), and at its end the code of what refused it, or `done`.
 */
import { writeSync } from 'node:fs';
import { XceError } from '../../../src/base/errors.ts';
import type { Attempt, JobId } from '../../../src/base/ids.ts';
import { openContext } from '../../../src/operations/context.ts';
import { allocateLease } from '../../../src/operations/lease-allocate.ts';

const [config = '', prefix = '', count = '0'] = process.argv.slice(2);

const write = async (): Promise<string> => {
  const context = openContext({
    configFlag: config,
    progress: { phase: (_title, work) => work(async () => undefined) },
    tell: (text) => process.stderr.write(`${text}\n`),
  });
  try {
    for (let i = 0; i < Number(count); i++) {
      const { job, lease, uid } = await allocateLease(context, {
        job: `${prefix}.${i}` as JobId,
        attempt: 0 as Attempt,
        schedulerStartS: null,
        submitter: '1001',
        nodes: 'n1',
        ttlMs: undefined,
        writablePaths: [],
        workspace: 'none',
      });
      writeSync(1, `${job} ${lease} ${uid}\n`);
    }
    return 'done';
  } catch (error) {
    if (!(error instanceof XceError)) throw error;
    process.stderr.write(`${prefix}: ${error.code}: ${error.message}\n`);
    return error.code;
  } finally {
    await context.close();
  }
};

writeSync(1, `${await write()}\n`);
