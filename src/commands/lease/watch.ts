import { ContextCommand } from '../../cli/context-command.ts';
import { endOnSignal } from '../../cli/end-on-signal.ts';
import { writeOut } from '../../cli/print.ts';
import { renderFollowed } from '../../cli/render-watch.ts';
import { formatFollowed, watchLeaseLog } from '../../operations/lease-watch.ts';

export default class LeaseWatch extends ContextCommand {
  static override summary = 'Show what happens in the lease log from now on, whichever host writes it.';
  static override description =
    'Ends on SIGINT or SIGTERM, and when nobody reads it any more. With --json it writes JSON lines; see xce-sandbox-log(5). No lock is taken.';

  async run(): Promise<void> {
    const { flags } = await this.parse(LeaseWatch);
    const format = flags.json ? formatFollowed : renderFollowed;
    await this.withContext(flags, (context) =>
      watchLeaseLog(context, endOnSignal(), (things) => writeOut(things.map(format).join(''))),
    );
  }
}
