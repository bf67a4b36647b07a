import { ContextCommand } from '../../cli/context-command.ts';
import { renderRepair } from '../../cli/render-lease.ts';
import { repairLeaseLog } from '../../operations/lease-repair.ts';

export default class LeaseRepair extends ContextCommand {
  static override summary = 'Go on in a new file where a crash left the lease log unfinished.';
  static override description =
    'The unfinished file stays as it is. Bytes that do not check are refused, and nothing is touched; what to do then stands in xce-sandbox-log(5), RECOVERY.';

  async run(): Promise<void> {
    const { flags } = await this.parse(LeaseRepair);
    await this.withContext(flags, async (context) => {
      await this.show(flags, await repairLeaseLog(context), renderRepair);
    });
  }
}
