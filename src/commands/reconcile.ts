import * as Flags from '@oclif/core/flags';
import { ContextCommand } from '../cli/context-command.ts';
import { renderReconciled } from '../cli/render-job.ts';
import { reconcile, requireAgreement } from '../operations/reconcile.ts';

export default class Reconcile extends ContextCommand {
  static override summary = 'Compare the lease log with all nodes and the storage.';
  static override description =
    'Lists leases whose time is over or that are in quarantine, sandboxes and workspaces without a lease, and nodes that are dirty or silent. Fails while anything differs. A lease that nothing was launched for, and one whose release has begun, are only told.';
  static override flags = {
    apply: Flags.boolean({
      description: 'Release what is over, and end what nodes have of leases that have ended.',
    }),
  };

  async run(): Promise<void> {
    const { flags } = await this.parse(Reconcile);
    await this.withContext(flags, async (context) => {
      const result = await reconcile(context, flags.apply);
      await this.showRequired(flags, result, renderReconciled, requireAgreement);
    });
  }
}
