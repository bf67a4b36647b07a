import { ContextCommand } from '../../cli/context-command.ts';
import { renderAudit } from '../../cli/render-lease.ts';
import { auditUids, requireClean } from '../../operations/uid-audit.ts';

export default class LeaseAudit extends ContextCommand {
  static override summary = 'Ask the name service about the uid of every lease.';
  static override description =
    "Nobody may have a uid that is leased. A lease whose uid is somebody's goes into quarantine, where `lease release` leaves it until the name service no longer knows the uid.";

  async run(): Promise<void> {
    const { flags } = await this.parse(LeaseAudit);
    await this.withContext(flags, async (context) => {
      const result = await auditUids(context);
      await this.showRequired(flags, result, renderAudit, requireClean);
    });
  }
}
