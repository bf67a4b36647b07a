import { ContextCommand } from '../../cli/context-command.ts';
import { renderPosition } from '../../cli/render-lease.ts';
import { compactLeaseLog } from '../../operations/lease-log.ts';

export default class LeaseCompact extends ContextCommand {
  static override summary = 'Begin a new file of the lease log with the state as it is.';
  static override description =
    'For the owner of the log. It does so by itself when a log has grown long; nothing that was acknowledged is lost.';

  async run(): Promise<void> {
    const { flags } = await this.parse(LeaseCompact);
    await this.withContext(flags, async (context) => {
      await this.show(flags, await compactLeaseLog(context), renderPosition);
    });
  }
}
