import { BaseCommand } from '../../cli/base-command.ts';
import { renderBundle } from '../../cli/render-config.ts';
import { initAuthority } from '../../operations/pki.ts';

export default class PkiInit extends BaseCommand {
  static override summary = 'Create the certificate authority and the ticket key of this cluster.';
  static override description =
    'Writes into the directory of [cluster] pki, on the one controller that will issue certificates. Existing keys are never replaced.';

  async run(): Promise<void> {
    const { flags } = await this.parse(PkiInit);
    await this.show(flags, await initAuthority(flags.config), renderBundle);
  }
}
