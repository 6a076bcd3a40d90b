// The secret of a new key: shown once, kept nowhere in the page.
import type { NewSecret } from "../../data/types";
import { T } from "../../texts";
import { CopyField, Dialog } from "../../ui/dialog";

export function SecretDialog(props: { made: NewSecret; onClose: () => void }) {
  const { made } = props;
  return (
    <Dialog title={T.keys.secretTitle} onClose={props.onClose}>
      <p class="warn">{T.keys.secretText}</p>
      <CopyField label={T.keys.id} value={made.id} />
      <CopyField label={T.keys.secret} value={made.secret} />
      <footer>
        <button type="button" class="primary" onClick={props.onClose}>
          {T.keys.kept}
        </button>
      </footer>
    </Dialog>
  );
}
