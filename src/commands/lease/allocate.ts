import * as Flags from '@oclif/core/flags';
import type { Attempt } from '../../base/ids.ts';
import { ContextCommand } from '../../cli/context-command.ts';
import { attemptFlag, durationFlag, jobFlag, jobNodesFlag, submitterFlag } from '../../cli/flags.ts';
import { requireOutput } from '../../cli/print.ts';
import { renderAllocated } from '../../cli/render-lease.ts';
import { allocateLease } from '../../operations/lease-allocate.ts';

export default class LeaseAllocate extends ContextCommand {
  static override summary = 'Lease one uid of the pool to a job attempt.';
  static override description =
    'Repeating the command while the lease is active gives the same lease; an attempt that has ended gets none.';
  static override examples = ["<%= config.bin %> lease allocate --job 42 --submitter 1001 --nodes 'n[1-3]'"];
  static override flags = {
    job: jobFlag({ required: true }),
    attempt: attemptFlag({ description: 'Attempt (requeue count) of the job; default 0.' }),
    submitter: submitterFlag({ required: true }),
    nodes: jobNodesFlag({ required: true }),
    ttl: durationFlag({ description: 'How long the job may run before its lease must be renewed.' }),
    write: Flags.string({
      description: 'Further path on shared storage that the job may write; walked whole afterwards.',
      helpValue: 'PATH',
      multiple: true,
    }),
    workspace: Flags.string({
      description: 'The [storage] of the workspace, or "none"; default: the first that has one.',
      helpValue: 'NAME',
    }),
  };

  async run(): Promise<void> {
    const { flags } = await this.parse(LeaseAllocate);
    requireOutput();
    await this.withContext(flags, async (context) => {
      const result = await allocateLease(context, {
        job: flags.job,
        attempt: flags.attempt ?? (0 as Attempt),
        schedulerStartS: null,
        submitter: flags.submitter,
        nodes: flags.nodes,
        ttlMs: flags.ttl,
        writablePaths: flags.write ?? [],
        workspace: flags.workspace,
      });
      await this.show(flags, result, renderAllocated);
    });
  }
}
