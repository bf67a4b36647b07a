import * as Flags from '@oclif/core/flags';
import { ContextCommand } from '../../cli/context-command.ts';
import { leaseSelection, nodeFlag, toSelection } from '../../cli/flags.ts';
import { renderLease } from '../../cli/render-lease.ts';
import { reclaimNode } from '../../operations/lease-reclaim.ts';

export default class LeaseReclaim extends ContextCommand {
  static override summary = 'Attest that a lost node of a lease is fenced off.';
  static override description =
    'The attempt ends, and its files may go to the submitter without the node. The uid stays until the node has certified after its return, and no job may use the node until then.';
  static override usage =
    'lease reclaim (--job ID [--attempt N] | --lease N) --node NODE --reason TEXT [OPTIONS]';
  static override examples = ["<%= config.bin %> lease reclaim --job 42 --node n2 --reason 'plug pulled'"];
  static override flags = {
    ...leaseSelection,
    node: nodeFlag({ description: 'The node that is off, or cut off from all storage.', required: true }),
    reason: Flags.string({ description: 'How this is known; kept.', helpValue: 'TEXT', required: true }),
    by: Flags.string({ description: 'Who says so; default: who logged in.', helpValue: 'WHO' }),
  };

  async run(): Promise<void> {
    const { flags } = await this.parse(LeaseReclaim);
    await this.withContext(flags, async (context) => {
      const result = await reclaimNode(context, {
        selection: toSelection(flags),
        node: flags.node,
        reason: flags.reason,
        by: flags.by,
      });
      await this.show(flags, result, renderLease);
    });
  }
}
