import { ContextCommand } from '../../cli/context-command.ts';
import { renderPosition } from '../../cli/render-lease.ts';
import { takeOverLeaseLog } from '../../operations/lease-log.ts';

export default class LeaseTakeover extends ContextCommand {
  static override summary = 'Make this controller the owner of the lease log.';
  static override description =
    'The former owner is fenced: nothing that it writes from then on counts. Needed after a reboot of the owner as well.';

  async run(): Promise<void> {
    const { flags } = await this.parse(LeaseTakeover);
    await this.withContext(flags, async (context) => {
      await this.show(flags, await takeOverLeaseLog(context), renderPosition);
    });
  }
}
