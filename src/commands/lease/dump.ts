import { ContextCommand } from '../../cli/context-command.ts';
import { epochFlag } from '../../cli/flags.ts';
import { writeOut } from '../../cli/print.ts';
import { dumpLeaseLog } from '../../operations/lease-dump.ts';

export default class LeaseDump extends ContextCommand {
  static override summary = 'Write everything that the lease log holds as JSON lines.';
  static override description = 'The lines are described in xce-sandbox-log(5). No lock is taken.';
  static override flags = {
    epoch: epochFlag({ description: 'This epoch; default: the newest complete one.' }),
  };

  async run(): Promise<void> {
    const { flags } = await this.parse(LeaseDump);
    await this.withContext(flags, (context) => dumpLeaseLog(context, flags.epoch, writeOut));
  }
}
