import { BaseCommand } from '../../cli/base-command.ts';
import { renderPosition } from '../../cli/render-lease.ts';
import { initLeaseLog } from '../../operations/lease-log.ts';

export default class LeaseInit extends BaseCommand {
  static override summary = 'Create the lease log of this cluster and instance.';
  static override description =
    'Done once. Refused where anything of an earlier log is found, and on storage that does not keep what the log needs.';

  async run(): Promise<void> {
    const { flags } = await this.parse(LeaseInit);
    await this.withContext(flags, async (context) => {
      await this.show(flags, await initLeaseLog(context), renderPosition);
    });
  }
}
