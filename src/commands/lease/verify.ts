import { ContextCommand } from '../../cli/context-command.ts';
import { renderVerification } from '../../cli/render-lease.ts';
import { verifyLeaseLog } from '../../operations/lease-log.ts';

export default class LeaseVerify extends ContextCommand {
  static override summary = 'Check every byte of the lease log, without changing anything.';
  static override description =
    'Shows as well how far the clocks of the storage, of who wrote last and of this host are apart.';

  async run(): Promise<void> {
    const { flags } = await this.parse(LeaseVerify);
    await this.withContext(flags, async (context) => {
      await this.show(flags, await verifyLeaseLog(context), renderVerification);
    });
  }
}
