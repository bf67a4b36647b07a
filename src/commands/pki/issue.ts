import * as Flags from '@oclif/core/flags';
import { BaseCommand } from '../../cli/base-command.ts';
import { countFlag } from '../../cli/flags.ts';
import { renderBundle } from '../../cli/render-config.ts';
import { issueIdentity } from '../../operations/pki.ts';
import { CERTIFICATE_ROLES } from '../../pki/names.ts';

export default class PkiIssue extends BaseCommand {
  static override summary = 'Issue the certificate and keys of one host.';
  static override description =
    'Writes a directory with all files that the host needs as its [cluster] pki. Copy it there as it is, keys readable by root alone.';
  static override examples = ['<%= config.bin %> pki issue --role worker --node n1 --out /root/n1-pki'];
  static override flags = {
    role: Flags.option({ options: CERTIFICATE_ROLES, required: true })({
      description: 'What the host does.',
    }),
    node: Flags.string({ description: 'Name of the host.', helpValue: 'NAME', required: true }),
    out: Flags.string({ description: 'Directory to write.', helpValue: 'DIR', required: true }),
    days: countFlag({ description: 'Validity; default 365 days.' }),
  };

  async run(): Promise<void> {
    const { flags } = await this.parse(PkiIssue);
    const { role, node, out, days = 365 } = flags;
    const bundle = await issueIdentity(flags.config, { role, node, out, days }, (text) => this.tell(text));
    await this.show(flags, bundle, renderBundle);
  }
}
