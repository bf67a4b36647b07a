import { ContextCommand } from '../../cli/context-command.ts';
import { leaseSelection, selectionUsage, toSelection } from '../../cli/flags.ts';
import { renderReleased } from '../../cli/render-lease.ts';
import { releaseLease } from '../../operations/lease-release.ts';

export default class LeaseRelease extends ContextCommand {
  static override summary = 'End a job and free its uid, by proof.';
  static override description =
    'Drains every node, hands every file to the submitter, verifies, and only then frees the uid. What is missing puts the lease into quarantine; repeat the command once it is mended.';
  static override usage = selectionUsage('lease release');
  static override flags = leaseSelection;

  async run(): Promise<void> {
    const { flags } = await this.parse(LeaseRelease);
    await this.withContext(flags, async (context) => {
      await this.show(flags, await releaseLease(context, toSelection(flags)), renderReleased);
    });
  }
}
